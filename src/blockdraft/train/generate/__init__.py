"""Making conversations in which the target gave the answers: what is asked, who answers, what is kept."""
