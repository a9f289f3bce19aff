"""greenstalk, pystalk and beanstalkc with the same methods. A job is an id and a message."""

from collections.abc import Callable
from typing import Any

import beanstalkc  # type: ignore[import-untyped] # it has no types, nor has pystalk
import greenstalk
import pystalk  # type: ignore[import-untyped]
import yaml  # type: ignore[import-untyped]

Job = tuple[int, str]


class _Client:
    """The methods that all libraries have. In the others, None stands for no job."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def kick_job(self, job: int) -> None:
        self.library.kick_job(job)

    def use(self, tube: str) -> None:
        self.library.use(tube)

    def watch(self, tube: str) -> None:
        self.library.watch(tube)

    def ignore(self, tube: str) -> None:
        self.library.ignore(tube)

    def stats_job(self, job: int) -> dict[str, Any]:
        return dict(self.library.stats_job(job))

    def stats_tube(self, tube: str) -> dict[str, Any]:
        return dict(self.library.stats_tube(tube))

    def pause_tube(self, tube: str, delay: int) -> None:
        self.library.pause_tube(tube, delay)

    def stats(self) -> dict[str, Any]:
        return dict(self.library.stats())

    def close(self) -> None:
        self.library.close()


class Greenstalk(_Client):
    """greenstalk."""

    def __init__(self, port: int) -> None:
        super().__init__(greenstalk.Client(("127.0.0.1", port)))

    def refusal(self, call: Callable[[], object]) -> str:
        try:
            call()
        except greenstalk.BeanstalkdError as error:
            return type(error).__name__.removesuffix("Error")
        return ""

    def put(self, message: str, priority: int, delay: int = 0, ttr: int = 60) -> int:
        return int(self.library.put(message, priority, delay, ttr))

    def reserve(self, timeout: int) -> Job | None:
        try:
            job = self.library.reserve(timeout)
        except greenstalk.TimedOutError:
            return None
        return job.id, job.body

    def peek(self, state: str) -> Job | None:
        try:
            job = getattr(self.library, f"peek_{state}")()
        except greenstalk.NotFoundError:
            return None
        return job.id, job.body

    def delete(self, job: int) -> None:
        self.library.delete(job)

    def release(self, job: Job, priority: int, delay: int = 0) -> None:
        self.library.release(greenstalk.Job(*job), priority, delay)

    def bury(self, job: Job, priority: int) -> None:
        self.library.bury(greenstalk.Job(*job), priority)

    def touch(self, job: Job) -> None:
        self.library.touch(greenstalk.Job(*job))

    def kick(self, most: int) -> int:
        return int(self.library.kick(most))

    def tubes(self) -> list[str]:
        return list(self.library.tubes())


class Pystalk(_Client):
    """pystalk, which has no touch."""

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

    def _job_or_none(self, call: Callable[[], Any]) -> Job | None:
        try:
            job = call()
        except pystalk.BeanstalkError as error:
            if error.message in ("TIMED_OUT", "NOT_FOUND"):
                return None
            raise
        return job.job_id, job.job_data

    def reserve(self, timeout: int) -> Job | None:
        return self._job_or_none(lambda: self.library.reserve_job(timeout))

    def peek(self, state: str) -> Job | None:
        return self._job_or_none(getattr(self.library, f"peek_{state}"))

    def ignore(self, tube: str) -> None:
        """Do nothing for the default tube: the library ignores it when another one is watched."""
        if tube != "default":
            super().ignore(tube)

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
    """beanstalkc, of the package beanstalkc3."""

    def __init__(self, port: int) -> None:
        super().__init__(beanstalkc.Connection("127.0.0.1", port, parse_yaml=yaml.safe_load))

    def refusal(self, call: Callable[[], object]) -> str:
        try:
            call()
        except beanstalkc.BeanstalkcException as error:
            return str(error.args[1]).title().replace("_", "")
        return ""

    def put(self, message: str, priority: int, delay: int = 0, ttr: int = 60) -> int:
        return int(self.library.put(message, priority, delay, ttr))

    def reserve(self, timeout: int) -> Job | None:
        job = self.library.reserve(timeout)
        return job and (job.jid, job.body)

    def peek(self, state: str) -> Job | None:
        job = getattr(self.library, f"peek_{state}")()
        return job and (job.jid, job.body)

    def delete(self, job: int) -> None:
        self.library.delete(job)

    def release(self, job: Job, priority: int, delay: int = 0) -> None:
        self.library.release(job[0], priority, delay)

    def bury(self, job: Job, priority: int) -> None:
        self.library.bury(job[0], priority)

    def touch(self, job: Job) -> None:
        self.library.touch(job[0])

    def kick(self, most: int) -> int:
        return int(self.library.kick(most))

    def tubes(self) -> list[str]:
        return list(self.library.tubes())


AnyClient = Greenstalk | Pystalk | Beanstalkc
CLIENTS: dict[str, Callable[[int], AnyClient]] = {
    "greenstalk": Greenstalk,
    "pystalk": Pystalk,
    "beanstalkc": Beanstalkc,
}
