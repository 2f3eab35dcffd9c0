package worker

import (
	"github.com/headway-go/headway/worker/metrics"
)

var _ ContextObserver = (*metrics.Metrics)(nil)
