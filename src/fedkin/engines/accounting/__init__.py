"""What a round amounted to: messages, operations, scores."""
