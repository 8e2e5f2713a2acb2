"""What a stage has made, as the pages of Vertex AI and Kubeflow show it: numbers, words, hashes, figures."""
