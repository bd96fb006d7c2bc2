"""What layouts were measured to take, and how measurements move what is predicted of others."""
