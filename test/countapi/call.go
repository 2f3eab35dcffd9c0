package countapi

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Open is the Departed of a call that has not been answered yet.
const Open time.Duration = -1

// Call is one request as the API saw it. Times count from the log's epoch by the monotonic clock.
type Call struct {
	Seq      int64         `json:"seq"`   // 1, 2, … in the order in which calls were logged
	ID       string        `json:"id"`    // header X-Task-Id; "" when absent
	Scope    string        `json:"scope"` // the path below /v1/, unescaped
	Cost     int64         `json:"cost"`  // header X-Task-Cost; 1 when absent, and requests where it says units
	Arrived  time.Duration `json:"arrived_ns"`
	Departed time.Duration `json:"departed_ns"` // Open while unanswered
	Status   int           `json:"status"`      // what was answered; 0 while unanswered, 499 when the caller went away

	Costs map[string]int64 `json:"costs,omitempty"` // by unit, where X-Task-Cost says them; requests are always there
}

// Succeeded reports whether the answer was a 2xx.
func (c Call) Succeeded() bool { return c.Status >= 200 && c.Status < 300 }

// setCost reads the header X-Task-Cost.
func (c *Call) setCost(text string) error {
	if !strings.Contains(text, "=") {
		cost, err := strconv.ParseInt(text, 10, 64)
		if err != nil || cost < 1 {
			return fmt.Errorf("header X-Task-Cost %q: write a whole number from 1, or units such as requests=1,tokens=1500", text)
		}
		c.Cost = cost
		return nil
	}
	costs := map[string]int64{"requests": 1}
	for one := range strings.SplitSeq(text, ",") {
		unit, number, _ := strings.Cut(one, "=")
		n, err := strconv.ParseInt(number, 10, 64)
		if unit == "" || err != nil || n < 0 {
			return fmt.Errorf("header X-Task-Cost %q: write units such as requests=1,tokens=1500", text)
		}
		costs[unit] = n
	}
	c.Cost, c.Costs = costs["requests"], costs
	return nil
}

// header is the first line of a log.
type header struct {
	Epoch       time.Time `json:"epoch"`
	EpochUnixNS int64     `json:"epoch_unix_ns"`
}

// ReadLog reads the log that Serve wrote: the moment from which the calls' times count, and the calls in order of arrival.
func ReadLog(r io.Reader) (time.Time, []Call, error) {
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<20)
	var h header
	if !in.Scan() {
		return time.Time{}, nil, errors.Join(errors.New("countapi: the log is empty: not even its first line was written"), in.Err())
	}
	if err := json.Unmarshal(in.Bytes(), &h); err != nil || h.EpochUnixNS == 0 {
		return time.Time{}, nil, errors.Join(errors.New("countapi: the log's first line does not give epoch_unix_ns"), err)
	}
	var calls []Call
	for line := 2; in.Scan(); line++ {
		var c Call
		if err := json.Unmarshal(in.Bytes(), &c); err != nil {
			return time.Time{}, nil, fmt.Errorf("countapi: log line %d: %w", line, err)
		}
		calls = append(calls, c)
	}
	if err := in.Err(); err != nil {
		return time.Time{}, nil, fmt.Errorf("countapi: read log: %w", err)
	}
	sortCalls(calls)
	return time.Unix(0, h.EpochUnixNS).UTC(), calls, nil
}
