"""What all folders share: files, redaction, importing, the version."""
