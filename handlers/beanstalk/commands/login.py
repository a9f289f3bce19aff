"""Commands that beanstalkd does not have: log in, ask whether the server is ready; and quit."""

from handlers.beanstalk import replies
from handlers.beanstalk.session import BeanstalkSession
from handlers.beanstalk.table import command


def _credentials(rest: bytes) -> tuple[bytes, bytes]:
    """Parse `USER PASSWORD`, or `PASSWORD` of the user `default`."""
    words = rest.split()
    if not 1 <= len(words) <= 2:
        raise replies.RefusedError(replies.BAD_FORMAT)
    return (b"default", words[0]) if len(words) == 1 else (words[0], words[1])


@command("auth [<user>] <password>", needs="nothing", parse=_credentials)
async def auth(client: BeanstalkSession, name: bytes, password: bytes) -> bytes:
    """Logs in: `AUTHENTICATED` or `UNAUTHENTICATED`. Not in beanstalkd."""
    return b"AUTHENTICATED\r\n" if await client.log_in(name, password) else replies.UNAUTHENTICATED


@command("ready", needs="nothing")
def ready(client: BeanstalkSession) -> None:
    """Tells whether the server accepts new clients: `READY`. Not in beanstalkd."""
    client.context.check_readiness()
    client.reply(b"READY\r\n")


@command("quit", needs="nothing")
def quit_(client: BeanstalkSession) -> None:
    """Closes the connection."""
    client.close_when_replied()
