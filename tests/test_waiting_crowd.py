"""Many clients that wait on as many queues: what they cost, and how fast each is woken."""

from __future__ import annotations


def test_many_wait_at_little_cost(start_valkey: StartValkey, start_server: StartServer) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, WAITERS + 1000)), hard))
    backend = start_valkey()
    server = start_server("--backend", backend.url, "--max-clients", "20000")
    with backend.client() as direct, server.client() as client, ExitStack() as stack:
        client.sadd("warm", *range(100))
        with waiters(server, 10) as warm:
            for waiter in warm:
                waiter.send("BLPOP", "warm", "nothing", 0)
                waiter.reply()
        waiting = [stack.enter_context(Waiter(server.port)) for _ in range(WAITERS)]
        for waiter in waiting:
            assert waiter("PING") == b"PONG"
        before = status(server, "VmRSS")
        began = time.monotonic()
        for number, waiter in enumerate(waiting):
            waiter.send("BLPOP", f"q{number}", 0)
        wait_for_blocked(client, WAITERS, timeout=60)
        took = time.monotonic() - began
        growth = (status(server, "VmRSS") - before) / WAITERS
        wait_for(lambda: len(connections(direct, tracking=True)) == 1, "one connection for all")
        assert len(direct.client_list()) <= 4  # that, the link, this one, and maybe one more
        processor = processor_seconds(server)
        time.sleep(2)  # this is the measurement
        processor = processor_seconds(server) - processor
        natively, ours = [], []
        for number in random.Random(1).sample(range(WAITERS), min(1000, WAITERS)):
            native = NativeClient(direct, f"q{number}")
            by_native = number % 2 == 0
            if by_native:
                native.create()
            start = time.perf_counter()
            if by_native:
                native.put(b"m")
            else:
                client.sadd(f"q{number}", "m")
            assert waiting[number].reply() == [b"q%d" % number, b"m"]
            (natively if by_native else ours).append(time.perf_counter() - start)
        print(
            f"{WAITERS} waiters: {took:.2f} s to wait, {growth / 1024:.2f} KiB each, "
            f"{processor:.3f} s of processor in 2 s; put to wake-up in ms, median and p99: "
            + "; ".join(
                f"{name} {statistics.median(times) * 1000:.2f} {statistics.quantiles(times, n=100)[98] * 1000:.2f}"
                for name, times in (("native", natively), ("SADD", ours))
            )
        )
        assert growth < 8 * 1024
        assert processor < 0.2
        assert statistics.median(ours) < 0.05
        assert statistics.median(natively) < 0.05
