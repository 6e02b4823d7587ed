// openai-go: chat completions and responses. `PROGRAM REAL_URL TALKER_URL` prints a line of JSON per check.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/responses"
)

const (
	realModel, talkerModel = "SmolLM2-135M-Instruct", "scripted"
	question, answer       = "What is the capital of Canada?", "Ottawa"
	call, result           = `CALL add {"a": 2, "b": 3}`, "done: 5"
	count                  = "COUNT 4000" // takes many seconds, unless it is aborted
	mostWaiting            = 10 * time.Second
)

var (
	realURL, talkerURL = os.Args[1], os.Args[2]
	atReal             = newClient(realURL)
	atTalker           = newClient(talkerURL)
	active             = regexp.MustCompile(`(?m)^draftd_engine_active_requests\{.*\} (\S+)$`)
	numbers            = map[string]any{
		"type":                 "object",
		"properties":           map[string]any{"a": map[string]any{"type": "integer"}, "b": map[string]any{"type": "integer"}},
		"required":             []string{"a", "b"},
		"additionalProperties": false,
	}
	city = map[string]any{
		"type": "object",
		"properties": map[string]any{
			"city":       map[string]any{"enum": []string{"Ottawa", "Oslo"}},
			"is_capital": map[string]any{"type": "boolean"},
		},
		"required":             []string{"city", "is_capital"},
		"additionalProperties": false,
	}
)

func newClient(url string) openai.Client {
	return openai.NewClient(option.WithBaseURL(url+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0))
}

func main() {
	check("plain", plain)
	check("stream", stream)
	check("schema", schema)
	check("tools", tools)
	check("abort", abort)
	check("resume", resume)
}

// check runs the function and prints whether it panicked.
func check(name string, run func(context.Context) string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	line := map[string]any{"name": name, "ok": true}
	func() {
		defer func() {
			if failure := recover(); failure != nil {
				line["ok"], line["detail"] = false, fmt.Sprint(failure)
			}
		}()
		line["detail"] = run(ctx)
	}()
	text, _ := json.Marshal(line)
	fmt.Println(string(text))
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func expect(ok bool, found any) {
	if !ok {
		panic(fmt.Sprintf("got %v", found))
	}
}

func chat(model, text string, most int64) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:     model,
		Messages:  []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)},
		MaxTokens: openai.Int(most),
	}
}

func response(model, text string) responses.ResponseNewParams {
	return responses.ResponseNewParams{
		Model: model,
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(text)},
	}
}

func plain(ctx context.Context) string {
	found := must(atReal.Chat.Completions.New(ctx, chat(realModel, question, 24))).Choices[0].Message.Content
	expect(strings.Contains(found, answer), found)
	asked := response(realModel, question)
	asked.MaxOutputTokens = openai.Int(24)
	found = must(atReal.Responses.New(ctx, asked)).OutputText()
	expect(strings.Contains(found, answer), found)
	return ""
}

func stream(ctx context.Context) string {
	chunks, pieces := atReal.Chat.Completions.NewStreaming(ctx, chat(realModel, question, 24)), []string{}
	whole := openai.ChatCompletionAccumulator{}
	for chunks.Next() {
		chunk := chunks.Current()
		expect(whole.AddChunk(chunk), chunk)
		if len(chunk.Choices) > 0 && chunk.Choices[0].Delta.Content != "" {
			pieces = append(pieces, chunk.Choices[0].Delta.Content)
		}
	}
	must(0, chunks.Err())
	text := strings.Join(pieces, "")
	expect(len(pieces) > 2 && strings.Contains(text, answer) && whole.Choices[0].Message.Content == text, pieces)

	asked := response(realModel, question)
	asked.MaxOutputTokens = openai.Int(24)
	events, pieces, end := atReal.Responses.NewStreaming(ctx, asked), []string{}, ""
	for events.Next() {
		event := events.Current()
		switch event.Type {
		case "response.output_text.delta":
			pieces = append(pieces, event.Delta)
		case "response.completed", "response.incomplete":
			end = event.Response.OutputText()
		}
	}
	must(0, events.Err())
	text = strings.Join(pieces, "")
	expect(len(pieces) > 2 && strings.Contains(text, answer) && end == text, pieces)
	return ""
}

func schema(ctx context.Context) string {
	asked := chat(realModel, question, 64)
	asked.ResponseFormat = openai.ChatCompletionNewParamsResponseFormatUnion{
		OfJSONSchema: &openai.ResponseFormatJSONSchemaParam{
			JSONSchema: openai.ResponseFormatJSONSchemaJSONSchemaParam{
				Name: "city", Schema: city, Strict: openai.Bool(true),
			},
		},
	}
	filled := struct {
		City      string `json:"city"`
		IsCapital *bool  `json:"is_capital"`
	}{}
	text := must(atReal.Chat.Completions.New(ctx, asked)).Choices[0].Message.Content
	must(0, json.Unmarshal([]byte(text), &filled))
	expect(filled.City != "" && filled.IsCapital != nil, text)
	return ""
}

func sum(arguments string) string {
	given := struct{ A, B int }{}
	must(0, json.Unmarshal([]byte(arguments), &given))
	return strconv.Itoa(given.A + given.B)
}

func tools(ctx context.Context) string {
	asked := chat(talkerModel, call, 200)
	asked.Tools = []openai.ChatCompletionToolUnionParam{
		openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{Name: "add", Parameters: numbers}),
	}
	first := must(atTalker.Chat.Completions.New(ctx, asked)).Choices[0].Message
	expect(len(first.ToolCalls) == 1, first.RawJSON())
	called := first.ToolCalls[0]
	asked.Messages = append(
		asked.Messages, first.ToParam(), openai.ToolMessage(sum(called.Function.Arguments), called.ID),
	)
	end := must(atTalker.Chat.Completions.New(ctx, asked)).Choices[0].Message.Content
	expect(end == result, end)

	question := response(talkerModel, call)
	question.Tools = []responses.ToolUnionParam{
		{OfFunction: &responses.FunctionToolParam{Name: "add", Parameters: numbers, Strict: openai.Bool(true)}},
	}
	begun := must(atTalker.Responses.New(ctx, question))
	expect(len(begun.Output) == 1 && begun.Output[0].Type == "function_call", begun.RawJSON())
	item := begun.Output[0].AsFunctionCall()
	question.PreviousResponseID = openai.String(begun.ID)
	question.Input = responses.ResponseNewParamsInputUnion{OfInputItemList: responses.ResponseInputParam{
		// The two versions have different types for the call's id.
		param.Override[responses.ResponseInputItemUnionParam](map[string]any{
			"type": "function_call_output", "call_id": item.CallID, "output": sum(item.Arguments),
		}),
	}}
	text := must(atTalker.Responses.New(ctx, question)).OutputText()
	expect(text == result, text)
	return ""
}

func activeRequests() float64 {
	response := must(http.Get(talkerURL + "/metrics"))
	defer response.Body.Close()
	found := active.FindStringSubmatch(string(must(io.ReadAll(response.Body))))
	expect(found != nil, "/metrics without draftd_engine_active_requests")
	return must(strconv.ParseFloat(found[1], 64))
}

func expectIdle() string {
	began := time.Now()
	for activeRequests() > 0 {
		expect(time.Since(began) < mostWaiting, "a request that runs on after the abort")
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Sprintf("idle after %.2f s", time.Since(began).Seconds())
}

func abort(ctx context.Context) string {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	chunks := atTalker.Chat.Completions.NewStreaming(ctx, chat(talkerModel, count, 4096))
	for seen := 0; seen < 3 && chunks.Next(); seen++ {
	}
	must(0, chunks.Err())
	expect(activeRequests() == 1, "no request that runs")
	chunks.Close()
	expectIdle()

	events := atTalker.Responses.NewStreaming(ctx, response(talkerModel, count))
	for events.Next() && events.Current().Type != "response.output_text.delta" {
	}
	must(0, events.Err())
	expect(activeRequests() == 1, "no request that runs")
	cancel()
	return expectIdle()
}

func resume(ctx context.Context) string {
	first := must(atTalker.Responses.New(ctx, response(talkerModel, "SAY apples and pears")))
	second := response(talkerModel, "RECALL it")
	second.PreviousResponseID = openai.String(first.ID)
	text := must(atTalker.Responses.New(ctx, second)).OutputText()
	expect(text == "apples and pears", text)
	return ""
}
