"""The soak: the whole system under random faults for as long as wished, with an account of every document.

``python -m ops.soak`` runs it; :mod:`ops.soak.soak` says what happens in which order.
"""
