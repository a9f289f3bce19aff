"""Wire protocols, one sub-package each; each knows the core and no other handler."""
