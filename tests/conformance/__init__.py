"""The suite every algorithm passes through the public protocol; add a case, get every test."""
