"""This package implements five message protocols on Twisted, and the shortest safe way from the
wire into Spark.

Importing this package alone pulls in neither a reactor nor pyspark nor pyarrow.
"""

from typing import TYPE_CHECKING, Any

from .core.message import Message, MessageBatch

if TYPE_CHECKING:
    from .net.authorising import Access, IAuthoriser
    from .net.sink import IMessageSink

__version__ = "0.1.0"

__all__ = ["Access", "IAuthoriser", "IMessageSink", "Message", "MessageBatch", "__version__"]


def __getattr__(name: str) -> Any:
    """Import what needs Twisted only when somebody asks for it."""
    if name in ("Access", "IAuthoriser", "IMessageSink"):
        from .net import authorising, sink

        return getattr(sink if name == "IMessageSink" else authorising, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
