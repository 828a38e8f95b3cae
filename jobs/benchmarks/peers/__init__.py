"""What this package is measured beside, and how each is called: in some files beside ours."""
