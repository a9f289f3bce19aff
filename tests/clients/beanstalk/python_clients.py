"""greenstalk, pystalk and beanstalkc with the same methods. A job is an id and a message."""

from collections.abc import Callable
from typing import Any

import beanstalkc  # type: ignore[import-untyped] # it has no types, nor has pystalk
import greenstalk
import pystalk  # type: ignore[import-untyped]
import yaml  # type: ignore[import-untyped]

Job = tuple[int, str]


class _Client:
    """A library's client. Its methods are used as they are, unless a class below has another."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def __getattr__(self, method: str) -> Any:
        return getattr(self.library, method)


class Greenstalk(_Client):
    """greenstalk, which takes and returns jobs as objects."""

    def __init__(self, port: int) -> None:
        super().__init__(greenstalk.Client(("127.0.0.1", port)))

    def refusal(self, call: Callable[[], object]) -> str:
        try:
            call()
        except greenstalk.BeanstalkdError as error:
            return type(error).__name__.removesuffix("Error")
        return ""

    def reserve(self, timeout: int) -> Job | None:
        try:
            job = self.library.reserve(timeout)
        except greenstalk.TimedOutError:
            return None
        return job.id, job.body

    def peek(self, state: str) -> Job:
        job = getattr(self.library, f"peek_{state}")()
        return job.id, job.body

    def release(self, job: Job, priority: int, delay: int = 0) -> None:
        self.library.release(greenstalk.Job(*job), priority, delay)

    def bury(self, job: Job, priority: int) -> None:
        self.library.bury(greenstalk.Job(*job), priority)

    def touch(self, job: Job) -> None:
        self.library.touch(greenstalk.Job(*job))


class Pystalk(_Client):
    """pystalk, which has no touch, and returns the replies."""

    def __init__(self, port: int) -> None:
        super().__init__(pystalk.BeanstalkClient("127.0.0.1", port, auto_decode=True))

    def refusal(self, call: Callable[[], object]) -> str:
        try:
            call()
        except pystalk.BeanstalkError as error:
            return str(error.message).title().replace("_", "")
        return ""

    def put(self, message: str, priority: int, delay: int = 0, ttr: int = 60) -> int:
        return int(self.library.put_job(message, priority, delay, ttr)[1])

    def reserve(self, timeout: int) -> Job | None:
        try:
            job = self.library.reserve_job(timeout)
        except pystalk.BeanstalkError as error:
            if error.message != "TIMED_OUT":
                raise
            return None
        return job.job_id, job.job_data

    def peek(self, state: str) -> Job:
        job = getattr(self.library, f"peek_{state}")()
        return job.job_id, job.job_data

    def ignore(self, tube: str) -> None:
        """Do nothing for the default tube: the library ignores it when another one is watched."""
        if tube != "default":
            self.library.ignore(tube)

    def delete(self, job: int) -> None:
        self.library.delete_job(job)

    def release(self, job: Job, priority: int, delay: int = 0) -> None:
        self.library.release_job(job[0], priority, delay)

    def bury(self, job: Job, priority: int) -> None:
        self.library.bury_job(job[0], priority)

    def touch(self, job: Job) -> None:
        """Do nothing."""

    def kick(self, most: int) -> int:
        return int(self.library.kick_jobs(most)[1])

    def tubes(self) -> list[str]:
        return list(self.library.list_tubes())


class Beanstalkc(_Client):
    """beanstalkc, of the package beanstalkc3, which takes the ids of jobs."""

    def __init__(self, port: int) -> None:
        super().__init__(beanstalkc.Connection("127.0.0.1", port, parse_yaml=yaml.safe_load))

    def refusal(self, call: Callable[[], object]) -> str:
        try:
            call()
        except beanstalkc.BeanstalkcException as error:
            return str(error.args[1]).title().replace("_", "")
        return ""

    def reserve(self, timeout: int) -> Job | None:
        job = self.library.reserve(timeout)
        return job and (job.jid, job.body)

    def peek(self, state: str) -> Job:
        job = getattr(self.library, f"peek_{state}")()
        return job.jid, job.body

    def release(self, job: Job, priority: int, delay: int = 0) -> None:
        self.library.release(job[0], priority, delay)

    def bury(self, job: Job, priority: int) -> None:
        self.library.bury(job[0], priority)

    def touch(self, job: Job) -> None:
        self.library.touch(job[0])


AnyClient = Greenstalk | Pystalk | Beanstalkc
CLIENTS: dict[str, Callable[[int], AnyClient]] = {
    "greenstalk": Greenstalk,
    "pystalk": Pystalk,
    "beanstalkc": Beanstalkc,
}
