// Package outbound runs tasks of type http, each of which is one outbound request.
//
// A Handler is an asynq.Handler. It does not handle limits: run it behind package worker's middleware, which charges a task when
// it starts, so that one charge is one call of ProcessTask. Each guarantee below names the test that checks it.
//
// # One charge is at most one request sent
//
// net/http's Transport repeats some requests by itself when a kept connection fails before the answer (Request.isReplayable in
// net/http), and has no switch for it. So the first byte of a request claims its permit for one connection, and no other
// connection accepts a byte of it (TestOneChargeIsAtMostOneRequest). The run then fails, and asynq's retry is charged anew. Only
// a request of which no byte was accepted goes out on another connection in the same run
// (TestUnsentRequestGoesOutOnAnotherConnection). HTTP/2 is off, also if a server offers it (TestTLS, TestNoProxyNoHTTP2): its
// client repeats requests by its own rules and mixes the requests of a connection. Redirects are not followed (TestStatuses).
//
// # What is sent
//
// The method is one of RFC 9110 or PATCH, or one that Config.AllowMethods lists (TestMethodsAreAList). A payload that is no
// request is refused with a *PayloadError that names the field, and asynq.SkipRetry (TestBadPayloadSaysWhichField).
//
// # What an answer means
//
// 2xx is success. 408, 425, 5xx and any answer that says "later" are a *StatusError that asynq retries;
// any other answer is a *StatusError with asynq.SkipRetry (TestStatuses, TestStatusErrorText). Package
// upstream reads when to come back, at most 24 hours later (TestRetryAfter). Config.OnResponse is called
// with each answer (TestAPIPauses). Only the status decides: a body that breaks off or never ends turns
// no success into a failure (TestBodyThatBreaksOffChangesNothing, TestEndlessAnswerEndsWithTheRun).
//
// A request that got no answer is retried. If a run ends before the answer, its error says after how long and what it waited for,
// and wraps the deadline, or the cancellation and its cause (TestTimeoutSaysHowLongAndForWhat, TestCancellationIsNotHidden). A
// context without a deadline gets 30 seconds (TestWithoutDeadlineThirtySeconds).
//
// # Connections
//
// Tasks share kept connections (TestOneConnectionForManyTasks). At most 1 MiB of an answer's body is read, for a second at most
// (TestHugeAnswerIsCutShort), unless its end has what a language model used (TestUsageIsReadToItsEnd), and 64 KiB of its headers (TestHeaderFloodEnds). Nothing is decompressed
// (TestCompressedAnswerStaysCompressed). A server cannot hold a run beyond its deadline (TestEndlessAnswerEndsWithTheRun,
// TestSwitchingProtocolsDoesNotHang). Bytes that follow one answer are never taken for the answer to the next task
// (TestAnswersAreNotMixedUp). TLS is 1.2 or newer, and the system's roots verify certificates (TestTLS). No proxy is used, not
// even the environment's (TestNoProxyNoHTTP2).
//
// # Addresses
//
// Addresses that are not public are refused, in IPv4, in IPv6, and as an IPv4 address inside an IPv6 one (TestRefusal,
// TestAddressesThatAreRefused), and so are those of the machine's own interfaces (TestOwnAddressesAreRefused,
// TestOwnAddressesAreFresh). The address that a socket connects to is judged, after name resolution, so a name cannot change its
// meaning in between (TestRebindingIsRefused, TestMixedAnswersUseThePublicOne). Hosts first go through IDNA, and numbers that
// only some systems read as addresses are refused (TestHostsGoThroughIDNA). The refusal is a *BlockedError with asynq.SkipRetry.
// Config.AllowHosts makes exceptions (TestAllowHosts). Config.OnlyHosts, Config.Ports and Config.DenyCIDRs outrank them
// (TestOnlyHosts, TestPorts, TestDenyCIDRs).
//
// # Secrets
//
// Header values, the URL's userinfo, query and fragment, and the body never appear in an error or a log record
// (TestSecretsNeverStandInErrors). If an answer or an error of net/http returns any of them, [redacted] replaces it: the whole
// value, or any part of at least eight bytes; in another case; escaped as in JSON, HTML or a URL, or as in two of them
// (TestHideEscaped). White space within it counts as one byte. A secret below four bytes is replaced only if it is a word of its
// own (TestHide). Of the body, values of at least four bytes are replaced, and parts of at least sixteen; field names stay.
// FuzzHide compares all this with a plain search. A secret that the API encodes or hashes is not recognised.
//
// Hiding costs time in proportion to request and answer, some 0.1 s of a processor at most (TestHidingIsLinear). If URL, headers
// and body exceed 512 KiB, the answer is not shown, and the error says so (TestOfHugeRequestsNoAnswerIsShown).
//
// Errors name a request by method, scheme, host and path. Segments of the path that look like keys, as in webhooks, are hidden
// (TestShownPath); a key of up to 20 letters without a digit looks like a word, and is shown. net/http prints nothing (TestMain).
// Debug records contain method, host, status and elapsed_ms (TestDebugRecord).
//
// A task may name a secret instead of containing it: see Config.Secrets (TestSecretsByReference, TestSecretsAreRefused), and for the key
// of the pool's member that it was granted Config.Member (TestSecretOfTheMember, TestMembersWithoutSecrets, TestEntriesOfMembers).
package outbound
