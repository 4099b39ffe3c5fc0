"""MicroMsg2 bytes: :mod:`.frames` and the :mod:`.texts` inside them."""
