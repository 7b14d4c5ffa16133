"""Calls that pages share: one at a time, and each page may wait for its end."""

from threading import Event, Thread

from efhc.watch import repeating
from efhc.watch.repeating import Repeated


def test_a_page_may_wait_while_another_begins_a_call(monkeypatch):
    """Two pages begin at the same moment: the thread of the call exists, and has not started."""
    created, may_start = Event(), Event()

    class LateThread(Thread):
        def start(self):
            created.set()
            may_start.wait(60)
            super().start()

    monkeypatch.setattr(repeating, "Thread", LateThread)
    calls = []
    repeated = Repeated(lambda: calls.append(1), 0.0)
    beginning = Thread(target=repeated.begin)
    beginning.start()
    created.wait(60)
    repeated.wait()
    may_start.set()
    beginning.join()
    repeated.wait()
    assert calls == [1]
    assert repeated.has_ended
