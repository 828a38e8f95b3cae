"""What all of the package stands on: errors, files, redaction, importing, Java, the version."""
