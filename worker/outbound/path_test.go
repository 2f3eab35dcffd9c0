package outbound

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// "Of a path, segments are hidden that are longer than 20 bytes, that mix letters and
// digits in 8 bytes or more, or that have more than 10 digits."
func TestShownPath(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/services/T024BE7LD/B0F9NL2KQ/XyZzYabcdefGhijKLmnopqrS":                      "/services/[redacted]/[redacted]/[redacted]",
		"/bot110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw/sendMessage":                "/[redacted]/sendMessage",
		"/bot123:ABC/sendMessage":                                                     "/[redacted]/sendMessage",
		"/api/webhooks/1234567890123456789/k-TokenOfSixtyEightBytes_abcdefghijklmnop": "/api/webhooks/[redacted]/[redacted]",
		"/v1/customers/cus_4QFJOjw2pOmAGJ/sources":                                    "/v1/customers/[redacted]/sources",
		"/users/7f1c4e4e-8f1a-4d6e-9f57-2f5f3c1b9d10":                                 "/users/[redacted]",
		"/a/%61%62%63%64%31%32%33%34/b":                                               "/a/[redacted]/b",
		"/a/abcd%31234":                                                               "/a/[redacted]",
		"/cards/4111111111111111":                                                     "/cards/[redacted]",
		"/tel/+4917012345678":                                                         "/tel/[redacted]",

		"":                                    "",
		"/":                                   "/",
		"//":                                  "//",
		"/charge":                             "/charge",
		"/v1beta1/oauth2/base64":              "/v1beta1/oauth2/base64",
		"/orders/1234567890/items/42":         "/orders/1234567890/items/42",
		"/2026-11-23/report":                  "/2026-11-23/report",
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

// "Keys in a path stand neither in errors nor in the log", whatever the API answers.
func TestPathSecretsNeverStandInErrors(t *testing.T) {
	t.Parallel()
	const token = "AAhush0dqTcvCH1vGWJxfSeofSAs0K5PALDsaw"
	for name, answer := range map[string]http.HandlerFunc{
		"plain": func(w http.ResponseWriter, r *http.Request) { http.Error(w, r.URL.Path, http.StatusNotFound) },
		"its token": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no bot "+token[:12]+"…", http.StatusNotFound)
		},
		"redirect":  func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path+"/", http.StatusFound) },
		"no answer": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"retried": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(503)
			_, _ = io.WriteString(w, r.RequestURI)
		},
	} {
		s := httptest.NewServer(answer)
		t.Cleanup(s.Close)
		var logs syncBuffer
		h := handler(t, Config{Logger: slog.New(slog.NewJSONHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug}))}, seams{})
		for _, path := range []string{"/bot110201543:" + token + "/sendMessage", "/hooks/" + strings.ReplaceAll(token, "h", "%68")} {
			err := run(t, h, payload{Method: "POST", URL: s.URL + path})
			if err == nil || !strings.Contains(err.Error(), "POST "+s.URL+"/") || !strings.Contains(err.Error(), "/"+redacted) {
				t.Errorf("%s: %v", name, err)
			}
			wantNoSecret(t, name, err, logs.String())
			if err != nil && (strings.Contains(err.Error(), token[:8]) || strings.Contains(err.Error(), "110201543")) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
