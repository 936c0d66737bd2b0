// Pushing functions down, for C++17. heddle_pushdown.h says what a pushed function may do; open the executor as it says.
//
//     std::size_t found = heddle::pushdown([&] { return std::count(names.begin(), names.end(), wanted); });
//
// Callables may capture by reference. Exceptions of the callable arrive at the caller. All other failures are
// heddle::pushdown_error.
#ifndef HEDDLE_PUSHDOWN_HPP
#define HEDDLE_PUSHDOWN_HPP

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "heddle_pushdown.h"

namespace heddle {

// The function was not run, or did not end. failure().kind says which.
class pushdown_error : public std::runtime_error {
public:
    explicit pushdown_error(const heddle_pushdown_failure &failure)
        : std::runtime_error(description(failure)), failure_(failure) {}

    // One of HEDDLE_PUSHDOWN_SIGNAL, _LOST, _BUSY, _REFUSED, _CANCELLED and _KILLED.
    int kind() const noexcept { return failure_.kind; }

    const heddle_pushdown_failure &failure() const noexcept { return failure_; }

private:
    static std::string description(const heddle_pushdown_failure &failure) {
        switch (failure.kind) {
        case HEDDLE_PUSHDOWN_SIGNAL:
            return "a pushed function was ended by signal " + std::to_string(failure.signal);
        case HEDDLE_PUSHDOWN_LOST:
            return "the executor was lost: it is unknown what the pushed function did";
        case HEDDLE_PUSHDOWN_BUSY:
            return "too many calls wait for the executor: the function has not run";
        case HEDDLE_PUSHDOWN_CANCELLED:
            return "a call was cancelled before its turn came: the function has not run";
        case HEDDLE_PUSHDOWN_KILLED:
            return "a pushed function ran for longer than its limit, and was ended in the middle";
        default:
            return "the executor is not open, or does not run this call: the function has not run";
        }
    }

    heddle_pushdown_failure failure_;
};

namespace pushdown_detail {

// What the trampoline leaves for the caller. References are kept as pointers, and "no result" as nothing.
template <class Result> struct outcome {
    std::optional<std::remove_cv_t<Result>> result;

    template <class Callable> void run(Callable &&callable) { result.emplace(std::invoke(std::forward<Callable>(callable))); }
    Result take() { return std::move(*result); }
};

template <class Result> struct outcome<Result &> {
    Result *result = nullptr;

    template <class Callable> void run(Callable &&callable) {
        result = std::addressof(std::invoke(std::forward<Callable>(callable)));
    }
    Result &take() { return *result; }
};

template <class Result> struct outcome<Result &&> {
    Result *result = nullptr;

    template <class Callable> void run(Callable &&callable) {
        Result &&reference = std::invoke(std::forward<Callable>(callable));
        result = std::addressof(reference);
    }
    Result &&take() { return std::move(*result); }
};

template <> struct outcome<void> {
    template <class Callable> void run(Callable &&callable) { std::invoke(std::forward<Callable>(callable)); }
    void take() {}
};

template <class Callable> struct call {
    std::remove_reference_t<Callable> *callable;
    outcome<std::invoke_result_t<Callable>> result;
    std::exception_ptr exception;

    // Runs in the executor. No exception may leave it: its caller there has no frames of C++. The exception object lies on the heap, which
    // both sides share, so the pointer is all that has to travel.
    static void trampoline(void *argument) noexcept {
        call &self = *static_cast<call *>(argument);
        try {
            self.result.run(std::forward<Callable>(*self.callable));
        } catch (...) {
            self.exception = std::current_exception();
        }
    }
};

} // namespace pushdown_detail

namespace pushdown_detail {

// Pushes a callable down with push(function, argument, failure).
template <class Callable, class Push> std::invoke_result_t<Callable> run(Callable &&callable, Push push) {
    using call = pushdown_detail::call<Callable>;
    call self{std::addressof(callable), {}, nullptr};
    heddle_pushdown_failure failure{};
    int kind = push(&call::trampoline, &self, &failure);
    if (kind != HEDDLE_PUSHDOWN_OK) {
        failure.kind = kind;
        throw pushdown_error(failure);
    }
    if (self.exception) std::rethrow_exception(std::move(self.exception));
    return self.result.take();
}

} // namespace pushdown_detail

// Runs callable() in the executor, waits, and returns its result: nothing, a value that can be moved, or a reference.
//
// An exception of the callable is rethrown here. Any other failure throws pushdown_error; if its kind is HEDDLE_PUSHDOWN_SIGNAL,
// HEDDLE_PUSHDOWN_LOST or HEDDLE_PUSHDOWN_KILLED, the callable was left in the middle, and the destructors of its local objects have not run.
template <class Callable>
std::invoke_result_t<Callable> pushdown(Callable &&callable, unsigned flags = HEDDLE_PUSHDOWN_COHERENT) {
    return pushdown_detail::run(std::forward<Callable>(callable), [&](auto function, void *argument, auto failure) {
        return heddle_pushdown(function, argument, flags, failure);
    });
}

// The same on terms (heddle_pushdown_with). Their size is filled in here. With HEDDLE_PUSHDOWN_OR_HERE the callable may run on this thread.
template <class Callable>
std::invoke_result_t<Callable> pushdown(Callable &&callable, heddle_pushdown_terms terms) {
    terms.size = sizeof terms;
    return pushdown_detail::run(std::forward<Callable>(callable), [&](auto function, void *argument, auto failure) {
        return heddle_pushdown_with(function, argument, &terms, failure);
    });
}

// The memory that this thread's last killed call may have left torn (heddle_pushdown_torn); nothing if it is not known any more.
inline std::optional<std::vector<heddle_pushdown_range>> torn_ranges() {
    std::vector<heddle_pushdown_range> ranges(heddle_pushdown_torn(nullptr, 0) + 1);
    std::size_t count = ranges.empty() ? HEDDLE_PUSHDOWN_TORN_UNKNOWN : heddle_pushdown_torn(ranges.data(), ranges.size());
    if (count == HEDDLE_PUSHDOWN_TORN_UNKNOWN) return std::nullopt;
    ranges.resize(count);
    return ranges;
}

} // namespace heddle

#endif
