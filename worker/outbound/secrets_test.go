package outbound

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/programs"
)

// secretive is a request with a secret in every place that may hold one. Each has its own text, which shows where a leak came from.
func secretive(base string) payload {
	scheme, rest, _ := strings.Cut(base, "://")
	return payload{
		Method: "POST",
		URL:    scheme + "://hush-user:hush%2Fpass@" + rest + "/bot110201543:AAhush0dqTcvCH1vGWJxfSeofSAs0K5PALDsaw/%61bhush0dqTcvCH1vGWJxfSeofSAs/charge?token=hush-query&hush-lone&q=hush%20quoted#hush-fragment",
		Headers: map[string]string{
			"Authorization":   "Bearer hush-bearer",
			"Cookie":          "session=hush-cookie; theme=dark",
			"X-Signature":     `key="hush-key",sig="hush+sig/=="`,
			"Idempotency-Key": "hush-idem",
			"X-Basic":         "hush-9",
		},
		Body: `{"card":"hush-card","nested":[{"pin":"hush\u002dpin <&>"}],"number":4111111111111111}`,
	}
}

var planted = []string{
	"hush", "4111111111111111", "110201543",
	base64.StdEncoding.EncodeToString([]byte("hush-user:hush/pass")),
}

// wantNoSecret looks through the error and all that it wraps, in every form that a logger would print.
func wantNoSecret(tb testing.TB, name string, err error, logs string) {
	tb.Helper()
	texts := []string{logs}
	var walk func(error)
	walk = func(err error) {
		if err == nil {
			return
		}
		texts = append(texts, err.Error(), fmt.Sprintf("%+v", err))
		if data, jsonErr := json.Marshal(err); jsonErr == nil {
			texts = append(texts, string(data))
		}
		switch e := err.(type) { //nolint:errorlint // it walks the chain itself
		case interface{ Unwrap() error }:
			walk(e.Unwrap())
		case interface{ Unwrap() []error }:
			for _, inner := range e.Unwrap() {
				walk(inner)
			}
		}
	}
	walk(err)
	for _, text := range texts {
		for _, secret := range planted {
			if strings.Contains(strings.ToLower(text), strings.ToLower(secret)) {
				tb.Errorf("%s: %q is in %q", name, secret, text)
			}
		}
	}
}

func bodyOf(r *http.Request) string {
	body, _ := io.ReadAll(r.Body)
	return string(body)
}

// echoes are the ways in which a server gives a request back.
var echoes = map[string]func(*http.Request) string{
	"plain": func(r *http.Request) string {
		var b strings.Builder
		_ = r.Write(&b)
		return b.String()
	},
	"upper case": func(r *http.Request) string { return strings.ToUpper(fmt.Sprint(r.RequestURI, r.Header)) },
	"as JSON": func(r *http.Request) string {
		data, _ := json.Marshal(map[string]any{"url": r.RequestURI, "headers": r.Header, "body": bodyOf(r)})
		return string(data)
	},
	"as HTML": func(r *http.Request) string { return html.EscapeString(fmt.Sprint(r.RequestURI, r.Header, bodyOf(r))) },
	"as a form": func(r *http.Request) string {
		return url.Values{"uri": {r.RequestURI}, "headers": {fmt.Sprint(r.Header)}, "body": {bodyOf(r)}}.Encode()
	},
	"decoded": func(r *http.Request) string {
		var body any
		_ = json.NewDecoder(r.Body).Decode(&body)
		return fmt.Sprintf("%v %s %v", r.URL.Query(), r.Header.Get("Authorization"), body)
	},
	"in pieces": func(*http.Request) string { // as in "card ending in …"
		return "bad token hush-quer..., session hush-cook..., bad card, no bot AAhush0dqTcv…"
	},
	"over lines": func(r *http.Request) string {
		return strings.ReplaceAll(fmt.Sprint(r.RequestURI, "\r\n\t", r.Header), " ", "\n")
	},
}

// Secrets and "keys in a path" never stand in an error or the log, however the request fails and whatever of it comes back.
func TestSecretsNeverStandInErrors(t *testing.T) {
	t.Parallel()
	type failing struct {
		url   string
		cfg   Config
		seams seams
		shown int // bytes of an answer; 0: as usual
		time  time.Duration
		warm  bool // one task first, so that the connection is a kept one
	}
	reply := func(text func(*http.Request) string) failing {
		return failing{url: listen(t, func(p *peer) {
			if req := p.request(); req != nil {
				p.say("%s", text(req))
			}
		}).url}
	}
	plain := echoes["plain"]
	oneLine := func(r *http.Request) string { return strings.ReplaceAll(plain(r), "\r\n", " ") }
	cases := map[string]failing{
		"redirect": reply(func(r *http.Request) string {
			return "HTTP/1.1 302 " + oneLine(r) + "\r\nLocation: " + oneLine(r) + "\r\nX: " + oneLine(r) + "\r\nContent-Length: 0\r\n\r\n"
		}),
		"reason phrase":   reply(func(r *http.Request) string { return "HTTP/1.1 400 " + oneLine(r) + "\r\n\r\n" }),
		"not HTTP":        reply(oneLine),
		"not HTTP, lines": reply(plain),
		"bad status":      reply(func(*http.Request) string { return "HTTP/1.1 hush-cookie x\r\n\r\n" }),
		"bad header":      reply(func(r *http.Request) string { return "HTTP/1.1 200 OK\r\n" + oneLine(r) + "\r\n\r\n" }),
		"bad header name": reply(func(*http.Request) string { return "HTTP/1.1 200 OK\r\nhush-cookie hush-card\r\n\r\n" }),
		"bad length":      reply(func(*http.Request) string { return "HTTP/1.1 500 E\r\nContent-Length: hush-cookie\r\n\r\n" }),
		"bad coding":      reply(func(*http.Request) string { return "HTTP/1.1 500 E\r\nTransfer-Encoding: hush-cookie\r\n\r\n" }),
		"bad chunk":       reply(func(*http.Request) string { return "HTTP/1.1 500 E\r\nTransfer-Encoding: chunked\r\n\r\nhush-cookie" }),
		"bad retry after": reply(func(*http.Request) string { return "HTTP/1.1 503 E\r\nRetry-After: hush-cookie\r\n\r\n" }),
		"header flood":    reply(func(r *http.Request) string { return "HTTP/1.1 200 OK\r\nX: " + strings.Repeat(oneLine(r), 1000) }),
		"upgrade": reply(func(r *http.Request) string {
			return "HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: hush-key\r\n\r\n" + plain(r)
		}),
		"closed":           reply(func(*http.Request) string { return "" }),
		"reset":            {url: listen(t, func(p *peer) { p.request(); p.reset() }).url},
		"timeout":          {url: listen(t, func(p *peer) { p.request(); p.request() }).url, time: 50 * time.Millisecond},
		"extra bytes":      reply(func(r *http.Request) string { return "HTTP/1.1 400 E\r\nContent-Length: 0\r\n\r\n" + plain(r) }),
		"TLS with a plain": {url: "https" + strings.TrimPrefix(listen(t, func(p *peer) { p.say("HTTP/1.1 hush") }).url, "http")},
		"blocked":          {url: "http://127.0.0.1:1", cfg: Config{AllowHosts: []string{"other"}}},
		"refused":          {url: "http://127.0.0.1:1"},
		"no such host":     {url: "http://nowhere.test", seams: seams{resolver: resolves()}},
		"resolver broken": {url: "http://nowhere.test", seams: seams{resolver: &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
			return nil, errors.New("no resolver")
		}}}},
		"replay": {url: listen(t, killSecond(kills["reset"])).url, warm: true},
	}
	secure := httptest.NewUnstartedServer(nil)
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	secure.TLS = &tls.Config{}
	secure.StartTLS()
	t.Cleanup(secure.Close)
	cases["certificate"] = failing{url: secure.URL}
	for name, echo := range echoes {
		for _, status := range []int{400, 500} {
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(status)
				_, _ = io.WriteString(w, echo(r))
			})
			for _, snippet := range []int{40, 256, 2000} {
				cases[fmt.Sprintf("echo %s, %d, snippet %d", name, status, snippet)] = failing{url: s.URL, shown: snippet}
			}
		}
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var logs programs.Output
			tc.cfg.Logger = slog.New(slog.NewJSONHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
			h := handler(t, tc.cfg, tc.seams)
			h.snippet = cmp.Or(tc.shown, h.snippet)
			if tc.warm {
				must(t, run(t, h, secretive(tc.url)))
			}
			if tc.time == 0 {
				tc.time = 20 * time.Second
			}
			for _, auth := range []bool{true, false} {
				p := secretive(tc.url)
				if !auth { // then the userinfo is sent
					delete(p.Headers, "Authorization")
				}
				ctx, cancel := context.WithTimeout(t.Context(), tc.time)
				err := h.ProcessTask(ctx, task(t, p))
				cancel()
				if err == nil && !tc.warm {
					t.Fatal("no error")
				}
				wantNoSecret(t, name, err, logs.String())
			}
		})
	}
}

func TestHide(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		p          payload
		text, want string
	}{
		{payload{Headers: map[string]string{"X-Tenant": "acme"}}, "tenant ACME is not known to acme.example", "tenant [redacted] is not known to [redacted].example"},
		{payload{Headers: map[string]string{"X-Page": "a"}}, "a page was asked: 'a'", "[redacted] page was asked: '[redacted]'"},
		{payload{Headers: map[string]string{"Authorization": "Bearer abcd1234"}}, "Bearer token abcd1234 has expired", "Bearer token [redacted] has expired"},
		{payload{Headers: map[string]string{"Authorization": "Basic dTpzZXNhbWU="}}, "password sesame of u is wrong", "password [redacted] of [redacted] is wrong"},
		{payload{URL: "http://bob:sesame@h/"}, "Bob's password Sesame is wrong", "[redacted]'s password [redacted] is wrong"},
		{payload{URL: "http://h/?key=abc%2Fdef&x"}, "abc/def, ABC%2fDEF, x, xx", "[redacted], [redacted], [redacted], xx"},
		{payload{Headers: map[string]string{"X-Key": "0123456789abcdef"}}, "key 0123456789... of 16", "key [redacted]... of 16"},
		{payload{Body: `{"amount":100,"currency":"EUR","card":"4242424242424242"}`}, `{"error":"amount 100 EUR: card 4242424242424242 declined"}`, `{"error":"amount 100 EUR: card [redacted] declined"}`},
		{payload{Body: `["line\nbreak", true, null]`}, `line\nbreak, line` + "\n" + `break, true, null`, `[redacted], [redacted], true, null`},
		{payload{Body: `user=bob&password=open%20sesame`}, `password 'open sesame' is too short`, `[redacted] '[redacted]' is too short`},
		{payload{Body: `<a><pin>12345</pin></a>`}, `pin 12345 is wrong`, `pin [redacted] is wrong`},
		{payload{Body: `{"unfinished": "string`}, `bad string`, `bad [redacted]`},
		{payload{}, "nothing to hide", "nothing to hide"},
		{payload{Headers: map[string]string{"X-A": "", "X-B": "  "}}, "nothing to hide", "nothing to hide"},
	} {
		if got, err := callOf(t, tc.p).hide(tc.text, false); got != tc.want || err != nil {
			t.Errorf("%+v\n got %s\nwant %s\n%v", tc.p, got, tc.want, err)
		}
	}
}

// "Segments of the path that look like keys, as in webhooks, are hidden."
func TestShownPath(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/services/T024BE7LD/B0F9NL2KQ/XyZzYabcdefGhijKLmnopqrS":       "/services/[redacted]/[redacted]/[redacted]",
		"/bot110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw/sendMessage": "/[redacted]/sendMessage",
		"/bot123:ABC/sendMessage":                                      "/[redacted]/sendMessage",
		"/users/7f1c4e4e-8f1a-4d6e-9f57-2f5f3c1b9d10":                  "/users/[redacted]",
		"/a/%61%62%63%64%31%32%33%34/b":                                "/a/[redacted]/b",
		"/cards/4111111111111111":                                      "/cards/[redacted]",

		"":                                    "",
		"/":                                   "/",
		"/charge":                             "/charge",
		"/v1beta1/oauth2/base64":              "/v1beta1/oauth2/base64",
		"/orders/1234567890/items/42":         "/orders/1234567890/items/42",
		"/chat.postMessage/payment_intents":   "/chat.postMessage/payment_intents",
		"/a%2Fb/c%20d":                        "/a%2Fb/c%20d",
		"/twenty_bytes_of_name":               "/twenty_bytes_of_name",
		"/twentyone_byte_a_name":              "/[redacted]",
		"/application/x-www-form-urlencoded/": "/application/[redacted]/",
	} {
		if got := shownPath(path, nil); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}
