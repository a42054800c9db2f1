"""What hosts agree on and send to each other: specification, messages, tensors."""
