"""A server for language models with OpenAI's API: completions, chats, responses, on FastAPI.

Source of the fields: https://platform.openai.com/docs/api-reference. Requests are defined in `protocol`, answers in
`answers`, and `service` turns requests into texts.
"""
