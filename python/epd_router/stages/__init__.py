"""The stages of a request: encode, then prefill and decode, and how workers are called."""
