package page

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/control"
)

type view struct {
	Title  string
	Screen string // its name, for the navigation
	Actor  Actor
	Login  bool   // the actor has logged in with a password, and can log out
	Live   string // the URL of the live part; empty for none
	Now    time.Time
	// Refresh is after how many seconds a browser without JavaScript reads the screen again, 0 for never.
	Refresh int
	Stale   *stale
	Data    any
}

// stale is a note that the data shown is old, and why.
type stale struct {
	At  time.Time
	Why string
}

// parse returns the templates of the screens by name, each with the shared parts.
func (h *handler) parse() (map[string]*template.Template, error) {
	all := map[string]*template.Template{}
	files, err := fs.Glob(embedded, "templates/*.html")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(file, "templates/"), ".html")
		if name == "base" || name == "parts" {
			continue
		}
		if all[name], err = template.New(name).Funcs(h.functions()).ParseFS(embedded, "templates/base.html", "templates/parts.html", file); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (h *handler) functions() template.FuncMap {
	return template.FuncMap{
		"link":    h.link,
		"asset":   func(name string) string { return h.cfg.Prefix + "/assets/" + name + "?v=" + assetVersion() },
		"num":     number,
		"units":   units,
		"time":    momentOf,
		"plural":  plural,
		"columns": func(names ...string) []string { return names }, // those of numbers begin with "#"
		"names":   crumbs,
		"reason":  reasonWords,
		"join":    strings.Join,
		"clock":   func(at time.Time) string { return at.UTC().Format("15:04") },
	}
}

// link returns a path of the page with a query, without pairs that are empty: link "/scope" "scope" "payments/acme".
func (h *handler) link(path string, kv ...any) string {
	query := url.Values{}
	for i := 0; i+1 < len(kv); i += 2 {
		if value := fmt.Sprint(kv[i+1]); value != "" {
			query.Add(fmt.Sprint(kv[i]), value)
		}
	}
	if len(query) == 0 {
		return h.cfg.Prefix + path
	}
	return h.cfg.Prefix + path + "?" + query.Encode()
}

var assetVersion = sync.OnceValue(func() string {
	sum := sha256.New()
	files, _ := fs.Glob(embedded, "assets/*")
	for _, file := range files {
		data, _ := embedded.ReadFile(file)
		_, _ = sum.Write(data)
	}
	return hex.EncodeToString(sum.Sum(nil))[:12]
})

// number returns a number with separators between thousands: 1,204,331.
func number(n any) string {
	digits, negative := strings.CutPrefix(fmt.Sprint(n), "-")
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	if negative {
		return "−" + digits
	}
	return digits
}

// units is number, and dollars for what counts money.
func units(n int64, unit string) string {
	if unit == policy.USD {
		return policy.Number(n, unit)
	}
	return number(n)
}

func plural(n any, noun, plural string) string {
	if text := number(n); text == "1" {
		return "1 " + noun
	}
	return number(n) + " " + plural
}

// moment is a time to show. A script turns it into local time, and counts it down.
type moment struct {
	Machine, Text string
	Zero          bool
}

func momentOf(at any) moment {
	t, _ := at.(time.Time)
	if wrapped, is := at.(control.Time); is {
		t = wrapped.Time
	}
	return moment{t.UTC().Format("2006-01-02T15:04:05.000Z"), clockText(t), t.IsZero()}
}

type crumb struct {
	Name, Scope string
	Last        bool
}

func crumbs(scope string) (list []crumb) {
	names := strings.Split(scope, "/")
	for i, name := range names {
		list = append(list, crumb{name, strings.Join(names[:i+1], "/"), i == len(names)-1})
	}
	return list
}

func clockText(t time.Time) string { return t.UTC().Format("2 Jan 15:04:05") + " UTC" }

// reasons are the words for what a task waits for.
var reasons = map[control.Reason]string{
	control.ReasonRule:        "{rule}",
	control.ReasonRun:         "a run that ends, under {rule}",
	control.ReasonMember:      "a member of the pool at {scope}",
	control.ReasonSuspended:   "{rule}, which is suspended",
	control.ReasonPaused:      "the pause of {scope}",
	control.ReasonUpstream:    "its API, which asked for a pause",
	control.ReasonBreaker:     "a call of {scope} that succeeds: its breaker is open",
	control.ReasonHours:       "a time when other rules apply",
	control.ReasonDelay:       "the end of its delay",
	control.ReasonCost:        "a higher limit: it costs more than a rule admits",
	control.ReasonQueuePaused: "its queue, which asynq has paused",
	control.ReasonUnmatched:   "a rule: none matches its scope",
}

func reasonWords(why control.Reason, rule, scope string) string {
	of := rule
	if scope != "" {
		of = rule + " of " + scope
	}
	return strings.NewReplacer("{rule}", of, "{scope}", scope).Replace(reasons[why])
}

func (h *handler) render(w http.ResponseWriter, r *http.Request, status int, name string, v view) error {
	v.Screen, v.Now = name, h.now()
	_, v.Login = h.sessions.of(r, h.now())
	var b bytes.Buffer
	if err := h.templates[name].ExecuteTemplate(&b, "base", v); err != nil {
		h.log.ErrorContext(r.Context(), "page: a screen cannot be shown", "screen", name, "error", err)
		return &statusError{http.StatusInternalServerError, "this screen cannot be shown; the log says why"}
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // the reader may have closed the connection
	return nil
}

// failure is a screen with an error, and what to do about it.
type failure struct {
	What  []string
	Try   string
	Retry bool // the screen reads itself again
	Found []searchResult
}

// againAfter is after how many seconds a browser reads a screen again that has no answer of Redis, also without scripts.
const againAfter = 5

// failed shows an error under the status that fits it.
func (h *handler) failed(w http.ResponseWriter, r *http.Request, actor Actor, err error) {
	f := failure{What: strings.Split(control.Plain(err), "\n")}
	title, status := "This did not work", statusOf(err)
	switch status {
	case http.StatusForbidden:
		title = "Not allowed"
	case http.StatusNotFound:
		title, f.Found = "Not found", h.suggestions(r, actor)
	case http.StatusServiceUnavailable:
		title, f.Try = "Redis does not answer", "Go back and send it again when Redis answers. If it lasts, look at Redis, and at the log of this process."
		if f.Retry = r.Method == http.MethodGet; f.Retry { // what a form has sent would be lost
			f.Try = "The page tries again by itself. If it lasts, look at Redis, and at the log of this process."
			w.Header().Set("Refresh", strconv.Itoa(againAfter))
		}
	}
	if err = h.render(w, r, status, "error", view{Title: title, Actor: actor, Data: f}); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// statusError is an error with the status of its answer.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return e.text }

func notFound(text string) error   { return &statusError{http.StatusNotFound, text} }
func badRequest(text string) error { return &statusError{http.StatusBadRequest, text} }
func conflict(text string) error   { return &statusError{http.StatusConflict, text} }

func statusOf(err error) int {
	if e, is := errors.AsType[*statusError](err); is {
		return e.status
	}
	switch {
	case errors.As(err, new(*control.ForbiddenError)):
		return http.StatusForbidden
	case errors.As(err, new(*control.NoTaskError)):
		return http.StatusNotFound
	case isRefusal(err):
		return http.StatusUnprocessableEntity
	}
	return http.StatusServiceUnavailable
}
