"""How broadcasts reach clients and answers come back."""
