"""Five message protocols on Twisted, and the shortest safe way from the wire into Spark.

Importing this package alone pulls in neither a reactor nor pyspark nor pyarrow.
"""

from .core.message import Message, MessageBatch

__version__ = "0.1.0"

__all__ = ["Message", "MessageBatch", "__version__"]
