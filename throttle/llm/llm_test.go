package llm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/headway-go/headway/throttle/policy"
)

// answers have the forms of the vendors' pages, read in 2026-11.
var answers = map[string]struct{ body, want string }{
	"openai chat": {
		`{"id": "chatcmpl-1", "object": "chat.completion", "model": "gpt-5.5-2026-04-23", "choices": [{"index": 0, "message": {"role": "assistant",
		"content": "\"usage\": {\"prompt_tokens\": 1}"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1117, "completion_tokens": 46,
		"total_tokens": 1163, "prompt_tokens_details": {"cached_tokens": 1024, "audio_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 30}}}`,
		"cache-write-tokens=0,cached-tokens=1024,input-tokens=1117,output-tokens=46,reasoning-tokens=30,tokens=1163",
	},
	"openai chat, stream with include_usage": {
		`data: {"id":"chatcmpl-1","model":"gpt-5.5","choices":[{"index":0,"delta":{"content":"Hel{lo"}}],"usage":null}` + "\n\n" +
			`data: {"id":"chatcmpl-1","model":"gpt-5.5","choices":[],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29}}` + "\n\ndata: [DONE]\n\n",
		"cache-write-tokens=0,cached-tokens=0,input-tokens=19,output-tokens=10,reasoning-tokens=0,tokens=29",
	},
	"openai chat, stream without include_usage": {
		`data: {"id":"chatcmpl-1","model":"gpt-5.5","choices":[{"index":0,"delta":{"content":"Hello"}}]}` + "\n\ndata: [DONE]\n\n", "",
	},
	"openai responses": {
		`{"id": "resp_1", "object": "response", "model": "gpt-5.5", "output": [{"type": "message"}], "usage": {"input_tokens": 36,
		"input_tokens_details": {"cached_tokens": 6, "cache_write_tokens": 10}, "output_tokens": 87, "output_tokens_details": {"reasoning_tokens": 7}, "total_tokens": 123}}`,
		"cache-write-tokens=10,cached-tokens=6,input-tokens=36,output-tokens=87,reasoning-tokens=7,tokens=123",
	},
	"openai responses, stream": {
		"event: response.created\n" + `data: {"type":"response.created","response":{"id":"resp_1","model":"gpt-5.5","usage":null}}` + "\n\n" +
			"event: response.completed\n" + `data: {"type":"response.completed","response":{"id":"resp_1","model":"gpt-5.5","usage":{"input_tokens":36,` +
			`"output_tokens":87,"total_tokens":123}}}` + "\n\n",
		"cache-write-tokens=0,cached-tokens=0,input-tokens=36,output-tokens=87,reasoning-tokens=0,tokens=123",
	},
	"openai embeddings": {
		`{"object":"list","data":[{"embedding":[0.1,-2e-5]}],"model":"text-embedding-3-small","usage":{"prompt_tokens":8,"total_tokens":8}}`,
		"cache-write-tokens=0,cached-tokens=0,input-tokens=8,output-tokens=0,reasoning-tokens=0,tokens=8",
	},
	"a server that is alike, with reasoning in the total alone": {
		`{"model":"m","usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":35,"completion_tokens_details":{"reasoning_tokens":20}}}`,
		"cache-write-tokens=0,cached-tokens=0,input-tokens=10,output-tokens=25,reasoning-tokens=20,tokens=35",
	},
	"anthropic": {
		`{"id": "msg_1", "type": "message", "model": "claude-sonnet-5", "content": [{"type": "tool_use", "input": {"usage": {"input_tokens": 1}}}],
		"usage": {"input_tokens": 50, "cache_creation_input_tokens": 300, "cache_read_input_tokens": 1000,
		"cache_creation": {"ephemeral_5m_input_tokens": 200, "ephemeral_1h_input_tokens": 100}, "output_tokens": 20}}`,
		"cache-write-tokens=300,cached-tokens=1000,input-tokens=350,output-tokens=20,tokens=1370",
	},
	"anthropic, stream": {
		"event: message_start\n" + `data: {"type":"message_start","message":{"id":"msg_1","model":"claude-sonnet-5","usage":{"input_tokens":25,"cache_read_input_tokens":5,"output_tokens":1}}}` + "\n\n" +
			"event: content_block_delta\n" + `data: {"type":"content_block_delta","delta":{"text":"}{"}}` + "\n\n" +
			"event: message_delta\n" + `data: {"type":"message_delta","usage":{"output_tokens":10}}` + "\n\n" +
			"event: message_delta\n" + `data: {"type":"message_delta","usage":{"input_tokens":null,"cache_creation_input_tokens":null,"output_tokens":15}}` + "\n\n",
		"cache-write-tokens=0,cached-tokens=5,input-tokens=25,output-tokens=15,tokens=45",
	},
	"anthropic, a stream that breaks off": {
		`data: {"type":"message_start","message":{"model":"claude-sonnet-5","usage":{"input_tokens":25,"output_tokens":1}}}` + "\n\n", "",
	},
	"gemini": {
		`{"candidates": [{"content": {"parts": [{"text": "hi"}]}}], "usageMetadata": {"promptTokenCount": 220, "cachedContentTokenCount": 100, "candidatesTokenCount": 5,
		"thoughtsTokenCount": 185, "toolUsePromptTokenCount": 10, "totalTokenCount": 420}, "modelVersion": "gemini-3.5-flash"}`,
		"cache-write-tokens=0,cached-tokens=100,input-tokens=230,output-tokens=190,reasoning-tokens=185,tokens=420",
	},
	"gemini, stream that repeats it": {
		`data: {"candidates": [{}],"usageMetadata": {"promptTokenCount": 4,"totalTokenCount": 4},"modelVersion": "gemini-3.5-flash"}` + "\r\n\r\n" +
			`data: {"candidates": [{}],"usageMetadata": {"promptTokenCount": 4,"candidatesTokenCount": 10,"totalTokenCount": 14}}` + "\r\n\r\n" +
			`data: {"candidates": [{}],"usageMetadata": {"promptTokenCount": 4,"candidatesTokenCount": 30,"totalTokenCount": 34}}` + "\r\n\r\n",
		"cache-write-tokens=0,cached-tokens=0,input-tokens=4,output-tokens=30,reasoning-tokens=0,tokens=34",
	},
	"gemini, stream as a list": {
		`[{"usageMetadata": {"promptTokenCount": 4,"totalTokenCount": 4}}` + "\n,\n" +
			`{"usageMetadata": {"promptTokenCount": 4,"candidatesTokenCount": 30,"totalTokenCount": 34}}]`,
		"cache-write-tokens=0,cached-tokens=0,input-tokens=4,output-tokens=30,reasoning-tokens=0,tokens=34",
	},

	"no JSON":             {"internal error", ""},
	"empty":               {"", ""},
	"cut short":           {`{"usage": {"prompt_tokens": 1, "total_tokens": 1}, "choices": [{"te`, ""},
	"no object":           {`{"usage": [1, 2]}`, ""},
	"no whole number":     {`{"usage": {"prompt_tokens": 1.5, "total_tokens": 2}}`, ""},
	"a text":              {`{"usage": {"prompt_tokens": "15", "total_tokens": 15}}`, ""},
	"negative":            {`{"usage": {"prompt_tokens": -5, "completion_tokens": 3}}`, ""},
	"more cached than in": {`{"usage": {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 6}}}`, ""},
	"a number beyond all": {`{"usage": {"prompt_tokens": 5000000000, "completion_tokens": 3}}`, ""},
	"by minutes":          {`{"text": "hello", "usage": {"type": "duration", "seconds": 12.5}}`, ""},
	"too deep":            {strings.Repeat("[", 1000) + `{"a": {"b": {"usage": {"prompt_tokens": 1}}}}`, ""},
	"a usage without end": {`{"usage": {"prompt_tokens": 1, "x": "` + strings.Repeat("x", maxKept) + `"}}`, ""},
}

// as makes an answer of a body.
func as(status int, body io.Reader) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(body)}
}

func text(costs policy.Costs, known bool) string {
	if !known {
		return ""
	}
	return costs.String()
}

// docs/llm.md, "Units". Malformed bodies settle nothing, whatever the pieces in which they come.
func TestCosts(t *testing.T) {
	t.Parallel()
	for name, tt := range answers {
		if got := text(Costs(as(200, strings.NewReader(tt.body)))); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
		if got := text(Costs(as(200, iotest.OneByteReader(strings.NewReader(tt.body))))); got != tt.want {
			t.Errorf("%s, byte by byte: %q", name, got)
		}
	}
	if _, known := Costs(as(200, iotest.TimeoutReader(strings.NewReader(answers["gemini"].body)))); known {
		t.Error("a body that breaks off is known")
	}
	gzipped := as(200, strings.NewReader(answers["gemini"].body))
	gzipped.Header.Set("Content-Encoding", "gzip")
	if _, known := Costs(gzipped); known {
		t.Error("a compressed body is known")
	}
}

// "Of a document that is longer than what the Transport keeps, nothing is known." A stream is known by its end, and a Meter by all of it.
func TestLongBodies(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", tail)
	document := `{"content": "` + long + `", "usage": {"prompt_tokens": 1, "completion_tokens": 2}}`
	if _, known := Costs(as(200, strings.NewReader(document))); known {
		t.Error("a document whose beginning may be missing")
	}
	stream := as(200, strings.NewReader(long+"\"}\n\ndata: "+`{"usage": {"prompt_tokens": 1, "completion_tokens": 2}}`+"\n\n"))
	stream.Header.Set("Content-Type", "text/event-stream; charset=utf-8")
	if costs, _ := Costs(stream); costs[Tokens] != 3 {
		t.Errorf("stream: %v", costs)
	}
	m := (*Prices)(nil).Meter(as(200, nil))
	if n, err := io.WriteString(m, document); n != len(document) || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if costs, _ := m.Costs(); costs[Tokens] != 3 || cap(m.scan.kept) > 1<<10 {
		t.Errorf("%v, keeps %d bytes", costs, cap(m.scan.kept))
	}
}

// The body is the caller's as it is. It settles once: at its end, or when it is closed before; Close returns the error.
func TestWatch(t *testing.T) {
	t.Parallel()
	body := answers["anthropic, stream"].body
	for name, tt := range map[string]struct {
		reads int
		times int
	}{"to its end": {len(body) + 1, 1}, "closed before": {len(body) - 1, 1}, "closed early": {100, 0}} {
		resp, times, bad := as(200, strings.NewReader(body)), 0, errors.New("no Redis")
		(*Prices)(nil).Watch(resp, func(costs policy.Costs) error {
			if costs == nil {
				return nil
			}
			if times++; costs[Output] != 15 {
				t.Errorf("%s: %v", name, costs)
			}
			return bad
		})
		got, err := io.ReadAll(io.LimitReader(resp.Body, int64(tt.reads)))
		if err != nil || !strings.HasPrefix(body, string(got)) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		err = resp.Body.Close()
		if times != tt.times || errors.Is(err, bad) != (times > 0) || resp.Body.Close() != nil {
			t.Errorf("%s: settled %d times, %v", name, times, err)
		}
	}
}

// An object of JSON is read as encoding/json reads it, whatever stands before it.
func FuzzScanner(f *testing.F) {
	for _, a := range answers {
		f.Add([]byte(a.body))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m := (*Prices)(nil).Meter(as(200, nil))
		_, _ = m.Write(data)
		if costs, known := m.Costs(); known && costs.CheckUnits() != nil {
			t.Errorf("%v", costs.CheckUnits())
		}
		var object map[string]json.RawMessage
		if json.Unmarshal(data, &object) != nil || len(object["usage"]) > maxKept/2 || bytes.Contains(data, []byte(`\`)) || bytes.Count(data, []byte("usage")) > 1 {
			return
		}
		var got map[string][]byte
		s := scanner{wants: func(path string) bool { return path == "usage" }, found: func(values map[string][]byte) { got = maps.Clone(values) }}
		_, _ = s.Write(append([]byte("event: x\ndata: "), data...))
		if want := object["usage"]; string(bytes.TrimSpace(got["usage"])) != string(want) {
			t.Errorf("%q, want %q", got["usage"], want)
		}
	})
}

func BenchmarkMeter(b *testing.B) {
	body := []byte(strings.Repeat(`data: {"id":"chatcmpl-1","model":"gpt-5.5","choices":[{"index":0,"delta":{"content":" word"}}],"usage":null}`+"\n\n", 1000))
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		_, _ = (*Prices)(nil).Meter(as(200, nil)).Write(body)
	}
}

func ExamplePrices_Meter() {
	prices, _ := NewPrices(map[string]Price{"claude-sonnet-5*": {"input": 3, "cached": 0.30, "cache_write": 3.75, "output": 15}})
	resp := as(200, strings.NewReader(answers["anthropic, stream"].body)) // of an API
	meter := prices.Meter(resp)
	_, _ = io.Copy(io.Discard, io.TeeReader(resp.Body, meter)) // or whatever becomes of it
	fmt.Println(meter.Costs())
	// Output: cache-write-tokens=0,cached-tokens=5,input-tokens=25,output-tokens=15,tokens=45,usd=302 true
}
