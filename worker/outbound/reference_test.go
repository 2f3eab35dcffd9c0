package outbound

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hibiken/asynq"
)

// A task names its secrets, and the worker puts them in where they may go: encoded as each place needs
// it, read anew for each request, and in no error.
func TestSecretsByReference(t *testing.T) {
	t.Setenv("HEADWAY_TEST_KEY", "k3y /&?")
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		must(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write("first\n")
	var got *http.Request
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		if r.URL.Path == "/echo" {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, r.Header.Get("Authorization")+" "+r.URL.RawQuery)
		}
	}))
	t.Cleanup(s.Close)
	at := s.Listener.Addr().String()
	h := handler(t, Config{Secrets: []string{"env:HEADWAY_TEST_KEY@" + at, "file:" + file + "@" + at}}, seams{})
	p := payload{
		URL:     s.URL + "/bot${env:HEADWAY_TEST_KEY}/send?token=${file:" + file + "}&key=${env:HEADWAY_TEST_KEY}",
		Headers: map[string]string{"Authorization": "Bearer ${file:" + file + "}", "X-Other": "${other:x} ${env}"},
	}
	must(t, run(t, h, p))
	if got.URL.EscapedPath() != "/botk3y%20%2F&%3F/send" || got.URL.Query().Get("token") != "first" || got.URL.Query().Get("key") != "k3y /&?" ||
		got.Header.Get("Authorization") != "Bearer first" || got.Header.Get("X-Other") != "${other:x} ${env}" {
		t.Errorf("%s with %v", got.URL, got.Header)
	}
	write("second\r\n")
	if err := run(t, h, p); err != nil || got.Header.Get("Authorization") != "Bearer second" {
		t.Errorf("%v with %v", err, got.Header)
	}
	p.URL = s.URL + "/echo?key=${env:HEADWAY_TEST_KEY}"
	err := run(t, h, p)
	if err == nil || strings.Contains(err.Error(), "second") || strings.Contains(err.Error(), "k3y") || !strings.Contains(err.Error(), redacted) {
		t.Errorf("%v", err)
	}
	if c, err := h.parse([]byte(`{"url":"` + s.URL + `/a/${env:HEADWAY_TEST_KEY}/b"}`)); err != nil || c.target() != "GET "+s.URL+"/a/"+redacted+"/b" {
		t.Errorf("%v, %v", c, err)
	}
}

// What the worker does not give to a host is refused for good, and sends nothing; what cannot be read now may be
// there later.
func TestSecretsAreRefused(t *testing.T) {
	t.Setenv("HEADWAY_TEST_KEY", "key")
	t.Setenv("HEADWAY_TEST_EMPTY", "")
	large := filepath.Join(t.TempDir(), "large")
	must(t, os.WriteFile(large, make([]byte, maxReference+1), 0o600))
	h := handler(t, Config{Secrets: []string{
		"env:HEADWAY_TEST_KEY@api.example.com", "env:HEADWAY_TEST_KEY@127.0.0.1:1", "env:HEADWAY_TEST_EMPTY@api.example.com", "env:TWO\nLINES@api.example.com",
		"file:" + large + "@api.example.com", "file:/does/not/exist@api.example.com",
	}}, seams{})
	for name, row := range map[string]struct {
		url, header, want string
		good              bool
	}{
		"its host":           {"https://API.example.com./", "${env:HEADWAY_TEST_KEY}", "", false},
		"its port":           {"http://127.0.0.1:1/", "${env:HEADWAY_TEST_KEY}", "", false},
		"another host":       {"https://evil.example.com/?${env:HEADWAY_TEST_KEY}", "", "url: names the secret env:HEADWAY_TEST_KEY, which this worker does not give to that host; start it with -secret env:HEADWAY_TEST_KEY@HOST", true},
		"another's header":   {"https://evil.example.com/", "${env:HEADWAY_TEST_KEY}", `headers["X-Key"]: names the secret env:HEADWAY_TEST_KEY, which`, true},
		"userinfo of it":     {"https://api.example.com@evil.example.com/", "${env:HEADWAY_TEST_KEY}", "which this worker does not give", true},
		"another port":       {"http://127.0.0.1:2/", "${env:HEADWAY_TEST_KEY}", "which this worker does not give", true},
		"another variable":   {"https://api.example.com/", "${env:PATH}", "names the secret env:PATH, which", true},
		"another file":       {"https://api.example.com/", "${file:/etc/passwd}", "names the secret file:/etc/passwd, which", true},
		"in the clear":       {"http://api.example.com/", "${env:HEADWAY_TEST_KEY}", "a secret is sent by https alone where -secret names no port", true},
		"in the host":        {"https://${env:HEADWAY_TEST_KEY}.example.com/", "", "url: not a valid URL", true},
		"empty":              {"https://api.example.com/", "${env:HEADWAY_TEST_EMPTY}", "outbound: the worker's environment has no HEADWAY_TEST_EMPTY", false},
		"a missing file":     {"https://api.example.com/", "${file:/does/not/exist}", "outbound: the secret file:/does/not/exist cannot be read: ", false},
		"a file of too much": {"https://api.example.com/", "${file:" + large + "}", "it is larger than 64 KiB", false},
	} {
		p := payload{URL: row.url, Headers: map[string]string{"X-Key": row.header}}
		_, err := h.parse(task(t, p).Payload())
		var bad *PayloadError
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) || errors.As(err, &bad) != row.good {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && errors.Is(run(t, h, p), asynq.SkipRetry) != row.good {
			t.Errorf("%s: a task that fails for good, or one that does not", name)
		}
	}
	for entry, want := range map[string]string{
		"env:KEY":             "names no host; write env:NAME@HOST",
		"KEY@api.example.com": "names no secret; write env:NAME@HOST",
		"env:@a":              "names no secret",
		"file:{}@a":           "names no secret",
		"env:KEY@a/b":         `outbound: secret "env:KEY@a/b": `,
		"env:KEY@":            "empty",
	} {
		if _, err := New(Config{Secrets: []string{entry}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", entry, err)
		}
	}
}
