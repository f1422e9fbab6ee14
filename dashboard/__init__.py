"""The Streamlit dashboard: it reads the store and writes nothing."""
