"""What ranks measure of their hosts before a training, and which of them are slow or odd."""
