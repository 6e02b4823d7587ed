"""The HTTP front: OpenAI's and Anthropic's protocols over the same service."""
