"""A server for language models in the form of OpenAI's API: completions, chats, responses, on FastAPI.

Source of the fields: https://platform.openai.com/docs/api-reference. What a request may hold is in `protocol`, what answers
look like in `answers`, and how requests become texts in `service`.
"""
