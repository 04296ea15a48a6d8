"""featfold."""
