"""What tasks have in common whose samples have one class each; no task by itself.

head.py              the classifier's head, and rows of another head by class name
losses.py            cross-entropy and focal loss, class weights
metrics.py           accuracy, and the means over classes of F1 and of recall
outcomes.py          what a model said of each sample of a split, in bounded memory
confusion.py         the confusion matrix as a picture
precision_recall.py  the curves of TensorBoard
report.py            the report on the test split, of all of these
accuracy.py          what a smaller precision may cost of right answers
"""
