package page

import (
	"errors"
	"iter"
	"net/http"
	"strings"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/worker/control"
)

const (
	// mostLines is how many lines are forecast at once, and mostShown how many of them are listed.
	mostLines, mostShown = 20_000, 200
)

type forecastData struct {
	Text    string
	Done    bool
	Summary queue.Summary
	Lines   []lineForecast
	More    int    // lines that are not listed
	Fault   string // why there is no forecast
}

type lineForecast struct {
	queue.Result
	Scope, Fault string
}

// forecast shows when the tasks of a batch would start. It enqueues nothing.
func (h *handler) forecast(w http.ResponseWriter, r *http.Request, actor Actor) error {
	d := &forecastData{Text: r.FormValue("batch")}
	status := http.StatusOK
	if d.Text != "" {
		if err := h.forecastBatch(r, actor, d); err != nil {
			d.Fault, status = control.Plain(err), http.StatusServiceUnavailable
		}
	}
	return h.render(w, r, status, "forecast", view{Title: "Forecast", Actor: actor, Data: d})
}

func (h *handler) forecastBatch(r *http.Request, actor Actor, d *forecastData) error {
	if _, err := h.limits(r.Context()); err != nil {
		return err
	}
	client := queue.NewClient(h.cfg.Redis, queue.ClientConfig{Limiter: h.limiter})
	scopes := map[int]string{}
	read := func(result queue.Result) {
		line := lineForecast{Result: result, Scope: scopes[result.Line]}
		if invalid, is := errors.AsType[*queue.InvalidError](result.Err); is {
			line.Fault = invalid.Reasons()
		} else if result.Err != nil {
			line.Fault = control.Plain(result.Err)
		}
		if len(d.Lines) < mostShown {
			d.Lines = append(d.Lines, line)
		} else {
			d.More++
		}
	}
	var err error
	d.Summary, err = client.Forecast(r.Context(), h.visibleEntries(actor, d.Text, scopes), read)
	d.Done = err == nil
	return err
}

// visibleEntries returns the lines of a batch. A line with a scope that the actor may not see is a bad line.
func (h *handler) visibleEntries(actor Actor, text string, scopes map[int]string) iter.Seq[queue.Entry] {
	return func(yield func(queue.Entry) bool) {
		lines := 0
		for e := range queue.NewReader(strings.NewReader(text)).All() {
			if lines++; lines > mostLines {
				yield(queue.Entry{Line: e.Line, Err: refusedLine("", "the page forecasts at most "+number(mostLines)+" lines; use enqueue batch -dry-run")})
				return
			}
			scopes[e.Line] = e.Task.Scope
			if e.Err == nil {
				if err := h.service.May(actor, control.VerbSee, e.Task.Scope); err != nil {
					e = queue.Entry{Line: e.Line, Err: refusedLine("scope", control.Plain(err))}
				}
			}
			if !yield(e) {
				return
			}
		}
	}
}

func refusedLine(field, reason string) error {
	return &queue.InvalidError{Faults: []queue.Fault{{Field: field, Reason: reason}}}
}
