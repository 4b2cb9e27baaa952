"""Speed against a peer, both sides measured in the same run."""
