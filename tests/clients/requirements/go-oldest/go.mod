module clients

go 1.24

require github.com/openai/openai-go/v3 v3.42.0
