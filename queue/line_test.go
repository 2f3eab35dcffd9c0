package queue_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policy"
)

func TestParseLine(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		line string
		want queue.Task
	}{
		"every field of http": {
			`{"type":"http","id":"inv-1","scope":"payments/acme","cost":1,"queue":"default","max_retry":3,"delay":"0s",` +
				`"timeout":"10s","http":{"method":"POST","url":"https://api.example.com/charge",` +
				`"headers":{"X-Tenant":"acme"},"body":"{\"amount\":100}"}}`,
			queue.Task{
				Type: "http", ID: "inv-1", Scope: "payments/acme", Cost: 1, Queue: "default",
				MaxRetry: queue.Retries(3), Timeout: 10 * time.Second,
				HTTP: &queue.HTTP{
					Method: "POST", URL: "https://api.example.com/charge",
					Headers: map[string]string{"X-Tenant": "acme"}, Body: `{"amount":100}`,
				},
			},
		},
		"another type": {
			`{"type":"mail","scope":"a","payload":{"to":["x"], "n" : 1e3}}`,
			queue.Task{Type: "mail", Scope: "a", Payload: []byte(`{"to":["x"], "n" : 1e3}`)},
		},
		"null payload": {`{"type":"mail","scope":"a","payload":null}`, queue.Task{Type: "mail", Scope: "a", Payload: []byte(`null`)}},
		"payload as it stands": {
			`{"type":"mail","scope":"a","payload":"<&>\u2028\ud83d\ude00"}`,
			queue.Task{Type: "mail", Scope: "a", Payload: []byte(`"<&>\u2028\ud83d\ude00"`)},
		},
		"repeated names in a payload": {
			`{"type":"mail","scope":"a","payload":{"a":1,"a":2}}`,
			queue.Task{Type: "mail", Scope: "a", Payload: []byte(`{"a":1,"a":2}`)},
		},
		"whole days and times": {
			`{"type":"mail","scope":"a","delay":"30d","timeout":"1h30m","max_wait":"2d","deadline":"2030-01-31T12:00:00.5+02:00","priority":-3}`,
			queue.Task{
				Type: "mail", Scope: "a", Delay: 720 * time.Hour, Timeout: 90 * time.Minute, MaxWait: 48 * time.Hour,
				Deadline: time.Date(2030, 1, 31, 10, 0, 0, 5e8, time.UTC), Priority: -3,
			},
		},
		"bounds": {
			`{"type":"mail","scope":"a","cost":1000000000000,"max_retry":1000000,"delay":"3650d","timeout":"1us"}`,
			queue.Task{
				Type: "mail", Scope: "a", Cost: queue.MaxCost, MaxRetry: queue.Retries(queue.MaxRetries),
				Delay: 3650 * 24 * time.Hour, Timeout: time.Microsecond,
			},
		},
		"cost by unit": {
			`{"type":"mail","scope":"a","cost":{"requests":1,"tokens":1500}}`,
			queue.Task{Type: "mail", Scope: "a", Costs: policy.Costs{"requests": 1, "tokens": 1500}},
		},
		"no retries": {`{"type":"mail","scope":"a","max_retry":0}`, queue.Task{Type: "mail", Scope: "a", MaxRetry: queue.Retries(0)}},
		"empty headers": {
			`{"type":"http","scope":"a","http":{"url":"http://h","headers":{},"body":""}}`,
			queue.Task{Type: "http", Scope: "a", HTTP: &queue.HTTP{URL: "http://h"}},
		},
	} {
		got, err := queue.ParseLine([]byte(tt.line))
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s:\ngot  %+v %v\nwant %+v", name, got, err, tt.want)
			continue
		}
		line, err := got.AppendLine([]byte("before"))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		again, err := queue.ParseLine(line[len("before"):])
		if err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("%s: as a line %s\n%+v %v", name, line, again, err)
		}
	}
}

// Every fault of a line names its field and what to write instead, and quotes no value that may be a secret.
func TestParseLineRefuses(t *testing.T) {
	t.Parallel()
	const known = "; a line has type, scope, id, cost, queue, max_retry, delay, timeout, deadline, max_wait, priority, http, payload"
	mail := func(more string) string { return `{"type":"mail","scope":"a",` + more + `}` }
	http := func(more string) string { return `{"type":"http","scope":"a","http":{"url":"http://h",` + more + `}}` }
	for name, tt := range map[string]struct{ line, want string }{
		"no JSON":               {`type=http`, "not JSON at byte 2: invalid character 'y' in literal true (expecting 'r')"},
		"half a line":           {`{"type":"mail","sco`, "not JSON at byte 20: unexpected EOF"},
		"two values":            {`{"type":"mail","scope":"a"} {}`, "not JSON: something follows the object"},
		"a list":                {`[{"type":"mail"}]`, "want one JSON object, got a list"},
		"deep":                  {strings.Repeat(`[`, 20000) + strings.Repeat(`]`, 20000), "not JSON at byte 10001: exceeded max depth"},
		"bad UTF-8":             {mail("\"id\":\"\xff\""), "not JSON at byte 34: invalid UTF-8"},
		"long":                  {mail(`"payload":"` + strings.Repeat("x", queue.MaxLine) + `"`), "longer than 1048576 bytes"},
		"nothing":               {`{}`, `type: required; "http" for an outbound request, or a type that a Go program has registered; scope: required; the path it spends from, such as payments/acme`},
		"unknown field":         {mail(`"prio":1`), `unknown field "prio"` + known},
		"repeated":              {mail(`"cost":1,"cost":2`), `field "cost" is given twice`},
		"cost 0":                {mail(`"cost":0`), "cost: 0 is below 1"},
		"cost fractional":       {mail(`"cost":1.5`), "cost: 1.5 is not a whole number in plain digits, such as 1000"},
		"cost beyond int64":     {mail(`"cost":99999999999999999999`), "cost: 99999999999999999999 is above 1000000000000"},
		"http without requests": {`{"type":"http","scope":"a","cost":{"requests":0,"tokens":1},"http":{"url":"https://api.example.com/"}}`, `cost: 0 requests; a task of type "http" sends one`},
		"a bad unit":            {mail(`"cost":{"Tokens":1}`), `cost: unit "Tokens" is no unit's name; write lower-case letters, digits, '-' and '_'`},
		"a bad amount":          {mail(`"cost":{"tokens":-1,"images":"2","x":1.5}`), `cost.tokens: -1 is below 0; cost.images: want a whole number, got a string; cost.x: 1.5 is not a whole number in plain digits, such as 1000`},
		"dollars":               {mail(`"cost":{"usd":0.02}`), `cost.usd: 0.02 is not a whole number in plain digits, such as 20000 for 2 cents`},
		"max wait a number":     {mail(`"max_wait":60`), `max_wait: want a string such as "90s", got a number`},
		"delay unit":            {mail(`"delay":"5"`), `delay: "5" is no duration, such as 500ms, 90s, 24h or 30d`},
		"timeout 0":             {mail(`"timeout":"0s"`), "timeout: 0 leaves no time to run; leave it out for the default"},
		"deadline form":         {mail(`"deadline":"tomorrow"`), `deadline: "tomorrow" is not an RFC 3339 time, such as 2030-01-31T12:00:00Z`},
		"scope as list":         {`{"type":"mail","scope":["a"]}`, "scope: want a string, got a list"},
		"id empty":              {mail(`"id":""`), "id: empty; leave it out where it has a default"},
		"queue long":            {mail(`"queue":"` + strings.Repeat("q", 129) + `"`), "queue: 129 bytes long; 128 at most"},
		"payload on http":       {`{"type":"http","scope":"a","payload":1,"http":{"url":"http://h"}}`, `payload: a task of type "http" has none; its request is in http`},
		"http missing":          {`{"type":"http","scope":"a"}`, `http: required by type "http", with at least a url`},
		"http as text":          {`{"type":"http","scope":"a","http":"http://h"}`, "http: want an object, got a string"},
		"url missing":           {`{"type":"http","scope":"a","http":{}}`, "http.url: missing; write an absolute URL such as https://api.example.com/charge"},
		"http unknown":          {http(`"params":{}`), `http: unknown field "params"; http has method, url, headers, body`},
		"header as number":      {http(`"headers":{"X":1}`), "http.headers: want a string, got a number"},
		"header repeated":       {http(`"headers":{"X":"1","X":"2"}`), `http.headers: field "X" is given twice`},
		"header's template":     {http(`"headers":{"X":"{{secret .member}} {{.member}}"}`), `http.headers: "X" has a "{{" that begins no template; write {{secret .member}} for the key of the pool's member`},
		"header pasted":         {http(`"headers":{"Authorization: secret":""}`), `http.headers: a name of 21 bytes is no header name`},
		"several":               {mail(`"cost":0,"queue":"a b","x":1`), `cost: 0 is below 1; unknown field "x"` + known + `; queue: "a b"; a queue name is letters, digits, _, - and .`},
	} {
		_, err := queue.ParseLine([]byte(tt.line))
		invalid, ok := errors.AsType[*queue.InvalidError](err)
		if !ok || invalid.Reasons() != tt.want {
			t.Errorf("%s:\ngot  %v\nwant %s", name, err, tt.want)
		}
	}
}

func TestAppendLineRefuses(t *testing.T) {
	t.Parallel()
	dst := []byte("kept")
	got, err := queue.Task{Type: "mail"}.AppendLine(dst)
	if _, ok := errors.AsType[*queue.InvalidError](err); !ok || string(got) != "kept" {
		t.Errorf("%q %v", got, err)
	}
	long := queue.Task{Type: "mail", Scope: "a", Payload: []byte(`"` + strings.Repeat("x", queue.MaxLine) + `"`)}
	got, err = long.AppendLine(dst)
	if err == nil || !strings.Contains(err.Error(), "1048576 at most") || string(got) != "kept" {
		t.Errorf("%q %v", got, err)
	}
	broken := queue.Task{Type: "mail", Scope: "a", Payload: []byte("{\n \"a\" :\r\n1}")}
	got, err = broken.AppendLine(nil)
	if err != nil || string(got) != `{"type":"mail","scope":"a","payload":{  "a" :  1}}` {
		t.Errorf("%q %v", got, err)
	}
}

// No line panics, and AppendLine writes a task that ParseLine reads back.
func FuzzParseLine(f *testing.F) {
	for _, seed := range []string{
		`{"type":"http","id":"inv-1","scope":"payments/acme","cost":1,"max_retry":3,"timeout":"10s","http":{"url":"https://a/","headers":{"X-Tenant":"acme"},"body":"{}"}}`,
		`{"type":"mail","scope":"a/b","payload":{"a":[1,{"b":"\ud83d\ude00"}]},"deadline":"2030-01-31T12:00:00.123456789Z","priority":7}`,
		`{"type":"mail","scope":"a","payload":null,"delay":"30d","cost":9e9}`, `{"a":{"b":["}\"",{}]},"\u00zz":1}`, `{"type":`, "\xef\xbb\xbf{}", `{"id":"\ud800"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		task, err := queue.ParseLine(line)
		if err != nil {
			if _, ok := errors.AsType[*queue.InvalidError](err); !ok || err.Error() == "" {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		if !json.Valid(line) {
			t.Fatalf("read from what is no JSON: %q", line)
		}
		written, err := task.AppendLine(nil)
		if err != nil {
			if strings.Contains(err.Error(), "at most") {
				return // longer than it came
			}
			t.Fatalf("%+v: %v", task, err)
		}
		again, err := queue.ParseLine(written)
		if err != nil || !reflect.DeepEqual(task, again) {
			t.Fatalf("%q\nas %q\n%+v\n%+v\n%v", line, written, task, again, err)
		}
	})
}

// "At most the first 20" faults of a line are listed: a megabyte of them makes no megabytes of text.
func TestManyFaults(t *testing.T) {
	t.Parallel()
	long, names := strings.Repeat("x", 1000), `"b":1`
	for i := range (queue.MaxLine - 5000) / 1020 {
		names += fmt.Sprintf(`,"%s%d":-1`, long, i)
	}
	for name, field := range map[string]string{
		"unknown": names, "units": `"cost":{` + names + `}`, "header fields": `"http":{"url":"x","headers":{` + names + `}}`,
	} {
		_, err := queue.ParseLine([]byte(`{` + field + `,"priority":` + strings.Repeat("9", 1000) + `,"type":"http","scope":"a/` + long + `"}`))
		invalid, refused := errors.AsType[*queue.InvalidError](err)
		if !refused || len(invalid.Faults) > 22 || len(err.Error()) > 20_000 || !strings.Contains(err.Error(), "and more; mend these first") {
			t.Errorf("%s: %.200v", name, err)
		}
	}
}
