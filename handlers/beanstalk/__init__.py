"""The beanstalk protocol: a tube is a queue, and its jobs are the queue's jobs.

Imports only `pressure_server`. handler.py is what the server uses; a command is a function in `commands/`.
"""

from handlers.beanstalk.handler import BeanstalkHandler

__all__ = ["BeanstalkHandler"]
