"""Beanstalk client libraries for Python, PHP and Ruby, telnet and nc, on a server and on beanstalkd.

Each library prints the same lines with both. The examples of their documentation run as written.
"""

import sys
from collections.abc import Iterator

import pytest

from tests.support.beanstalkd import running_beanstalkd
from tests.support.client_scripts import output_of, typed
from tests.support.module_servers import module_server
from tests.support.paths import ROOT
from tests.support.programs import Server
from tests.support.requirements import need_success

pytestmark = pytest.mark.clients

SCRIPTS = ROOT / "tests/clients" / "beanstalk"


def need_library(runner: str) -> None:
    if runner == "php":
        code = "exit((@include 'Pheanstalk/autoload.php') ? 0 : 1);"
        need_success("php-pda-pheanstalk", "php", "-r", code)
    elif runner == "ruby":
        need_success("ruby-beaneater", "ruby", "-e", "require 'beaneater'")


def run_code(runner: str, code: str, port: int) -> str:
    """Run code of that language; `{port}` in it is the beanstalk port. Return its output."""
    need_library(runner)
    command = {"php": ("php", "-r"), "ruby": ("ruby", "-e"), "python": (sys.executable, "-c")}[runner]
    return output_of(*command, code.replace("{port}", str(port)))


shared_server = module_server("--listen", "beanstalk://127.0.0.1:0")


@pytest.fixture
def port(server: Server) -> int:
    return server.port_of("beanstalk")


@pytest.fixture
def beanstalkd() -> Iterator[int]:
    """The port of a beanstalkd."""
    with running_beanstalkd() as port:
        yield port


def lines_of(library: str, port: int) -> str:
    """Run the script of a library. Return the lines that it prints."""
    need_library(library)
    if library in ("php", "ruby"):
        suffix = {"php": "php", "ruby": "rb"}[library]
        return output_of(library, str(SCRIPTS / f"jobs.{suffix}"), str(port))
    return output_of(sys.executable, "-m", "tests.clients.beanstalk.jobs", str(port), library)


LIBRARIES = ["greenstalk", "pystalk", "beanstalkc", "php", "ruby"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_jobs_behave_with_every_client_as_with_beanstalkd(library: str, port: int, beanstalkd: int) -> None:
    expected = (SCRIPTS / "jobs.txt").read_text()
    assert lines_of(library, port) == expected
    assert lines_of(library, beanstalkd) == expected


GREENSTALK_README = """
import greenstalk
client = greenstalk.Client(('127.0.0.1', {port}))
print(client.put('hello'))
job = client.reserve()
print(job.id)
print(job.body)
client.delete(job)
client.close()
"""
PYSTALK_README = """
import json
from pystalk import BeanstalkClient
client = BeanstalkClient('127.0.0.1', {port})
client.put_job(json.dumps({"foo": "bar"}), delay=30)
client.use("some_tube")
client.put_job("some message")
with client.using("some_tube") as inserter:
    inserter.put_job("some message")
client.put_job_into("some_tube", "some message")
client = BeanstalkClient('127.0.0.1', {port})
client.watch('some_tube')
for job in client.reserve_iter():
    try:
        print(job.job_data)
    except Exception:
        client.release_job(job.job_id)
        raise
    client.delete_job(job.job_id)
"""
PYSTALK_POOL = """
from pystalk import ProductionPool
pool = ProductionPool.from_uris(
    ['beanstalkd://127.0.0.1:{port}', 'beanstalkd://127.0.0.1:{port}'],
    socket_timeout=10
)
pool.put_job_into('some_tube', 'some job')
"""
BEANSTALKC_TUTORIAL = """
import beanstalkc
beanstalk = beanstalkc.Connection(host='127.0.0.1', port={port})
print(beanstalk.put('hey!'))
job = beanstalk.reserve()
print(job.body)
job.delete()
print(beanstalk.reserve(timeout=0))
"""
PHEANSTALK_README = """
require 'Pheanstalk/autoload.php';
use Pheanstalk\\Pheanstalk;
$pheanstalk = Pheanstalk::create('127.0.0.1', {port});
$pheanstalk
  ->useTube('testtube')
  ->put("job payload goes here\\n");
$pheanstalk
    ->useTube('testtube')
    ->put(
        json_encode(['test' => 'data']),
        Pheanstalk::DEFAULT_PRIORITY,
        30,
        60
     );
$pheanstalk = Pheanstalk::create('127.0.0.1', {port});
$pheanstalk->watch('testtube');
$job = $pheanstalk->reserve();
try {
    $jobPayload = $job->getData();
    $pheanstalk->touch($job);
    echo $jobPayload;
    $pheanstalk->delete($job);
} catch (\\Exception $e) {
    $pheanstalk->release($job);
}
"""
BEANEATER_README = """
require 'beaneater'
require 'json'
@beanstalk = Beaneater.new('127.0.0.1:{port}')
@tube = @beanstalk.tubes["my-tube"]
@tube.put '{ "key" : "foo" }', :pri => 5
@tube.put '{ "key" : "bar" }', :delay => 3
while @tube.peek(:ready)
  job = @tube.reserve
  puts "job value is #{JSON.parse(job.body)["key"]}!"
  job.delete
end
@beanstalk.close
"""
# The worker buries a job whose block raises an error, and releases one whose error is to be retried.
BEANEATER_WORKER = """
require 'beaneater'
require 'timeout'
@beanstalk = Beaneater.new('127.0.0.1:{port}')
@beanstalk.jobs.register('work', :retry_on => [Timeout::Error]) do |job|
  raise Timeout::Error if job.body == 'again' && job.stats.releases == 0
  raise 'broken' if job.body == 'broken'
  puts job.body
  raise Beaneater::AbortProcessingError if job.body == 'last'
end
work = @beanstalk.tubes['work']
%w[again broken last].each_with_index { |body, pri| work.put body, :pri => pri }
@beanstalk.jobs.process!(:release_delay => 0, :reserve_timeout => 1)
p [work.stats.current_jobs_buried, work.stats.current_jobs_ready]
p work.peek(:buried).body
"""
# By name: the language, the example, and its output.
EXAMPLES = {
    "greenstalk": ("python", GREENSTALK_README, "1\n1\nhello\n"),
    "pystalk": ("python", PYSTALK_README, "b'some message'\n" * 3),
    "pystalk's pool": ("python", PYSTALK_POOL, ""),
    "beanstalkc": ("python", BEANSTALKC_TUTORIAL, "1\nhey!\nNone\n"),
    "Pheanstalk": ("php", PHEANSTALK_README, "job payload goes here\n"),
    "Beaneater": ("ruby", BEANEATER_README, "job value is foo!\n"),
    "Beaneater's worker": ("ruby", BEANEATER_WORKER, 'again\nlast\n[2, 0]\n"broken"\n'),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_works_as_written(name: str, port: int) -> None:
    runner, code, output = EXAMPLES[name]
    assert run_code(runner, code, port) == output


TYPED = [
    "use work", "put 10 0 60 5", "hello", "put 1 0 60 3", "two", "watch work", "ignore default", "reserve",
    "peek-ready", "delete 1", "release 2 1 0", "reserve-with-timeout 0", "bury 2 3", "kick 1", "what",
    "kick x", "list-tubes-watched", "quit",
]  # fmt: skip


@pytest.mark.parametrize("program", ["telnet", "nc"])
def test_jobs_can_be_used_by_hand_as_in_beanstalkd(program: str, port: int, beanstalkd: int) -> None:
    replies = typed(program, port, TYPED)
    assert replies == (
        "USING work\nINSERTED 1\nINSERTED 2\nWATCHING 2\nWATCHING 1\nRESERVED 2 3\ntwo\nFOUND 1 5\nhello\n"
        "DELETED\nRELEASED\nRESERVED 2 3\ntwo\nBURIED\nKICKED 1\nUNKNOWN_COMMAND\nBAD_FORMAT\n"
        "OK 11\n---\n- work\n\n"
    )
    assert typed(program, beanstalkd, TYPED) == replies
