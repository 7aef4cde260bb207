"""What the adapters of torch and transformers are made of."""
