package outbound

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/headway-go/headway/throttle/upstream"
)

// StatusError says that the API answered with a status other than 2xx, or says "later" with any status.
//
// An answer that says "later" (see upstream.Hint.Limited) is no failure and uses up no attempt, unless limits.yaml says so. asynq
// retries other 408, 425 and 5xx as failures. Any other status wraps asynq.SkipRetry: the same request
// would get the same answer. That includes redirects, which are not followed.
type StatusError struct {
	Status     int
	Limited    bool          // the API says "later"
	Burns      bool          // such an answer uses up an attempt nevertheless
	RetryAfter time.Duration // the requested wait, at most 24h; -1 if none
	Snippet    string        // the first bytes of the answer: one line, printable, secrets replaced by [redacted]; or why they are not shown

	target string
}

// RetryIn implements worker.Retrier: it returns when the API asked to be called again.
func (e *StatusError) RetryIn() (wait time.Duration, asked bool) {
	return e.RetryAfter, e.RetryAfter > 0
}

// DeferBy implements worker.Deferrer: an answer that is Limited uses up no attempt.
func (e *StatusError) DeferBy() (wait time.Duration, known, deferred bool) {
	return max(0, e.RetryAfter), e.RetryAfter >= 0, e.Limited && !e.Burns
}

// CallFailed implements worker.CallFailer: a 5xx that does not say "later" is a failure of the API.
func (e *StatusError) CallFailed() bool {
	return e.Status >= http.StatusInternalServerError && !e.Limited
}

func (e *StatusError) Error() string {
	var b strings.Builder
	b.WriteString("outbound: ")
	if e.target != "" {
		b.WriteString(e.target + " ")
	}
	fmt.Fprintf(&b, "answered %d", e.Status)
	if text := http.StatusText(e.Status); text != "" {
		b.WriteString(" " + text)
	}
	if 300 <= e.Status && e.Status <= 399 {
		b.WriteString(" (redirects are not followed)")
	}
	if e.RetryAfter >= 0 {
		fmt.Fprintf(&b, " (retry after %s)", e.RetryAfter)
	}
	if e.Snippet != "" {
		b.WriteString(": " + e.Snippet)
	}
	return b.String()
}

// answer judges resp by its status and what it means, and reads enough of its body to reuse the connection. A body
// that breaks off changes nothing: repeating a charge because its receipt was cut short would be worse.
func (h *Handler) answer(c *call, resp *http.Response, means upstream.Hint) error {
	defer func() { _ = resp.Body.Close() }()
	if 200 <= resp.StatusCode && resp.StatusCode <= 299 && !means.Limited && !means.Failed {
		most := h.maxResponse
		if means.Usage {
			most = maxUsage
		}
		_, _ = io.CopyN(io.Discard, resp.Body, most)
		return nil
	}
	err := &StatusError{Status: resp.StatusCode, Limited: means.Limited, Burns: means.Burns, RetryAfter: retryAfter(means), target: c.target()}
	if resp.StatusCode != http.StatusSwitchingProtocols { // its body is the bare connection, which ctx does not end
		err.Snippet = h.readSnippet(c, resp)
	}
	if code := resp.StatusCode; err.Limited || means.Failed || code == http.StatusRequestTimeout || code == http.StatusTooEarly || 500 <= code && code <= 599 {
		return err // the same request may get another answer later
	}
	return permanent{err}
}

// beyondSnippet is how much more is read than shown, so that a secret that the cut would split is found whole.
const beyondSnippet = 1024

func (h *Handler) readSnippet(c *call, resp *http.Response) string {
	most := min(int64(h.snippet)+beyondSnippet, h.maxResponse)
	first, _ := io.ReadAll(io.LimitReader(resp.Body, most))
	_, _ = io.CopyN(io.Discard, resp.Body, h.maxResponse-int64(len(first)))
	if len(first) == 0 {
		return ""
	}
	if enc := resp.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return "[compressed body, not shown]" // secrets cannot be found in it
	}
	shown, err := c.hide(string(first), int64(len(first)) == most)
	if err != nil {
		return "[not shown: " + err.Error() + "]"
	}
	return clean(shown, h.snippet)
}

const maxRetryAfter = 24 * time.Hour

// retryAfter returns the wait that an answer asks for, at most 24h, or -1 if none.
func retryAfter(means upstream.Hint) time.Duration {
	if !means.RetryKnown {
		return -1
	}
	return min(means.Retry, maxRetryAfter)
}
