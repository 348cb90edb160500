//! What a Qwen model is: shapes, presets and a hardened GGUF header reader.
