"""The tasks of tables: rows of numbers and categories to a class (classification.py) or to a number (regression.py).

inputs.py             columns of the shards, and rows as arrays
network.py            the network: imputation, normalisation and embedding lookups, and an architecture behind them
mlp.py, table_transformer.py   the architectures that come with the tool
metrics.py            mean absolute error, root of the mean squared error, R2
report.py             a regression on the test split: residuals, and the worst rows
bundle.py             what an export ships: table.json, predict.py, and their gate
predict.py            the shipped program; it knows nothing of this package
"""
