"""The driver: runs one exchange from the bytes of a request to the bytes of its answer.

The only package that does what the loop (`engine/loop.py`) asks for: it calls models, asks hooks, feeds the splicer
and writes frames. It must not know Litestar, YAML or what a frame looks like.

::

    driver.py    Driver.run: one exchange, its loop and its end
    state.py     what belongs to one exchange, and what telemetry hears of it
    calls.py     one exchange's calls of models, timed
    passing.py   no hook watches: bytes in, bytes out
    json_road.py the road of a JSON answer
    stream_road.py  the road of a stream
    ports.py     what the driver is given
"""

from loopway.exchange.driver import Driver
from loopway.exchange.ports import Incoming, LoopSettings, Sink

__all__ = ["Driver", "Incoming", "LoopSettings", "Sink"]
