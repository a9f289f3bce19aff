"""The HTTP listener: health, metrics, and the console for operators.

Requests are handled by aiohttp. Everything that is shown comes from the objects that serve the clients;
actions are executed as commands of the RESP handler, with its checks of rights and arguments.
"""
