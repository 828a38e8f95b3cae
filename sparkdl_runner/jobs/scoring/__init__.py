"""What the score job is made of: the model's columns, and where scores go."""
