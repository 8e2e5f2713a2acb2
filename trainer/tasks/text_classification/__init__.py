"""Text classification: one of several classes for each text, as tokens of the tokenizer that lies with the shards.

task.py     the task: members in the order in which a sample meets them
network.py  the network of the configuration: transformers, or module:callable
bundle.py   what an export of it has beside graphs (trainer/export/bundle/bundles.py), with its gate
predict.py  the program that ships, and the tokens of a text in training too; answers.py is `shardline predict`
"""
