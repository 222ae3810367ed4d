"""Watch a run while it trains: alarms that may come at any step, and hold at every step."""

from askgauss.monitor.eprocess import ObservedStep
from askgauss.monitor.feed import Alarm, Course, Feed, Projection, read_feed, write_feed
from askgauss.monitor.run_monitor import Monitor, monitor_of

__all__ = [
    "Alarm",
    "Course",
    "Feed",
    "Monitor",
    "ObservedStep",
    "Projection",
    "monitor_of",
    "read_feed",
    "write_feed",
]
