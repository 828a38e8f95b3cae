"""What an agent looks at on its host before its rank begins: other users, and limits."""
