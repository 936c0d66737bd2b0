// C++ in pushed functions. Each case is one argument: it prints "ok" and exits with 0, or says what is wrong and exits with 1.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <typeinfo>
#include <vector>

#include <signal.h>

#include "check.h"
#include "heddle_pushdown.hpp"

namespace {

struct shape {
    virtual ~shape() = default;
    virtual double area() const = 0;
};

struct rectangle : shape {
    double width, height;
    rectangle(double width, double height) : width(width), height(height) {}
    double area() const override { return width * height; }
};

struct named {
    virtual ~named() = default;
    virtual std::string name() const { return "nothing"; }
};

struct square : rectangle, named {
    explicit square(double side) : rectangle(side, side) {}
    double area() const override { return -rectangle::area(); }
    std::string name() const override { return "square"; }
};

void vtables() {
    std::vector<std::unique_ptr<shape>> shapes;
    for (int i = 0; i < 100; i++) {
        if (i % 2 == 0) shapes.push_back(std::make_unique<rectangle>(i, 2));
        else shapes.push_back(std::make_unique<square>(i));
    }
    auto sum = [&] {
        return std::accumulate(shapes.begin(), shapes.end(), 0.0, [](double sum, auto &shape) { return sum + shape->area(); });
    };
    double here = sum();
    CHECK(heddle::pushdown(sum) == here);
    heddle::pushdown([&] {
        CHECK(dynamic_cast<named *>(shapes[0].get()) == nullptr);
        CHECK(dynamic_cast<named &>(*shapes[1]).name() == "square");
        CHECK(typeid(*shapes[1]) == typeid(square));
        shapes[0].reset();
        for (int i = 0; i < 100; i++) shapes.push_back(std::make_unique<square>(1));
    });
    // Objects that the function has made.
    CHECK(shapes.size() == 200 && shapes[0] == nullptr && shapes[150]->area() == -1);
    CHECK(dynamic_cast<named &>(*shapes[199]).name() == "square");
}

int plain_function() { return 17; }

struct counts_moves {
    int moves = 0;
    counts_moves() = default;
    counts_moves(counts_moves &&other) : moves(other.moves + 1) {}
};

struct only_once {
    std::unique_ptr<int> value = std::make_unique<int>(5);
    std::unique_ptr<int> operator()() && { return std::move(value); }
};

void closures() {
    int number = 4;
    std::string text = "caller";
    heddle::pushdown([&, copied = number] {
        number += copied;
        text += " and function";
    });
    CHECK(number == 8 && text == "caller and function");

    CHECK(heddle::pushdown(plain_function) == 17 && heddle::pushdown(&plain_function) == 17);
    std::function<int()> stored = [number] { return number + 1; };
    CHECK(heddle::pushdown(stored) == 9 && stored() == 9);
    CHECK(*heddle::pushdown(only_once{}) == 5);
    CHECK(heddle::pushdown([] { return counts_moves(); }).moves <= 2);
    std::string &same = heddle::pushdown([&]() -> std::string & { return text; });
    CHECK(&same == &text);
    const std::string moved = heddle::pushdown([&]() -> std::string && { return std::move(text); });
    CHECK(moved == "caller and function");
    std::array<int, 1000> large = heddle::pushdown([] {
        std::array<int, 1000> large;
        std::iota(large.begin(), large.end(), 0);
        return large;
    });
    CHECK(large[999] == 999);
    // Functions that the other side has made.
    std::function<int()> made = heddle::pushdown([&]() -> std::function<int()> {
        return [&number, big = std::string(1000, 'x')] { return number + static_cast<int>(big.size()); };
    });
    CHECK(made() == 1008);
}

struct custom_exception {
    std::vector<int> numbers;
    virtual ~custom_exception() = default;
};
struct derived_exception : custom_exception {};

int living;
struct counted {
    counted() { living++; }
    ~counted() { living--; }
};

__attribute__((noinline)) void throws_below(int depth) {
    counted here;
    if (depth == 0) throw std::runtime_error("from below");
    throws_below(depth - 1);
    living += 1000;
}

// The kind of failure of a pushdown within the callable.
template <class Callable> int failure_of_call(Callable &&callable) {
    try {
        callable();
    } catch (const heddle::pushdown_error &error) {
        CHECK(std::string(error.what()).size() > 10);
        return error.kind();
    }
    return HEDDLE_PUSHDOWN_OK;
}

template <class Callable> heddle_pushdown_failure failure_of(Callable &&callable) {
    try {
        heddle::pushdown(callable);
    } catch (const heddle::pushdown_error &error) {
        CHECK(std::string(error.what()).size() > 10 && error.kind() == error.failure().kind);
        return error.failure();
    }
    return {};
}

void exceptions() {
    for (int round = 0; round < 20; round++) {
        try {
            heddle::pushdown([] { throws_below(10); });
            CHECK(!"it throws");
        } catch (const std::runtime_error &error) {
            CHECK(std::string(error.what()) == "from below" && living == 0);
            CHECK(dynamic_cast<const heddle::pushdown_error *>(&error) == nullptr);
        }
    }
    for (unsigned mode : {HEDDLE_PUSHDOWN_PSO, HEDDLE_PUSHDOWN_WEAK, HEDDLE_PUSHDOWN_OFF}) {
        try {
            heddle::pushdown([] { throws_below(10); }, mode);
            CHECK(!"it throws");
        } catch (const std::runtime_error &error) {
            CHECK(std::string(error.what()) == "from below" && living == 0);
        }
    }
    try {
        heddle::pushdown([]() -> int {
            derived_exception error;
            error.numbers.assign(1000, 3);
            throw error;
        });
        CHECK(!"it throws");
    } catch (custom_exception &error) {
        CHECK(error.numbers.size() == 1000 && error.numbers[999] == 3 && dynamic_cast<derived_exception *>(&error) != nullptr);
    }
    try {
        heddle::pushdown([] { throw 7; });
        CHECK(!"it throws");
    } catch (int number) {
        CHECK(number == 7);
    }
    // Caught and thrown again within the function; caught there for good.
    try {
        heddle::pushdown([] {
            try {
                throws_below(3);
            } catch (const std::exception &) {
                throw;
            }
        });
        CHECK(!"it throws");
    } catch (const std::runtime_error &error) {
        CHECK(std::string(error.what()) == "from below");
    }
    CHECK(heddle::pushdown([] {
        try {
            throws_below(3);
        } catch (const std::exception &error) {
            return std::string(error.what());
        }
        return std::string();
    }) == "from below");
    // With the exception of the caller that is being handled.
    try {
        throw std::logic_error("outer");
    } catch (...) {
        heddle::pushdown([] {
            CHECK(std::uncaught_exceptions() == 0);
            try {
                throw;
            } catch (const std::logic_error &error) {
                CHECK(std::string(error.what()) == "outer");
            }
        });
    }
    std::exception_ptr kept = heddle::pushdown([] { return std::make_exception_ptr(std::out_of_range("kept")); });
    try {
        std::rethrow_exception(kept);
    } catch (const std::out_of_range &error) {
        CHECK(std::string(error.what()) == "kept");
    }
    CHECK(living == 0);

    CHECK(failure_of([] { *reinterpret_cast<volatile int *>(8) = 1; }).signal == SIGSEGV);
    // An exception that must not leave ends the function, as it would end a program.
    CHECK(failure_of([]() noexcept { throws_below(0); }).signal == SIGABRT);
    CHECK(failure_of([] {
        CHECK(failure_of([] {}).kind == HEDDLE_PUSHDOWN_REFUSED);
    }).kind == HEDDLE_PUSHDOWN_OK);
    // There are no threads in a function.
    try {
        heddle::pushdown([] { std::thread([] {}).join(); });
        CHECK(!"it throws");
    } catch (const std::system_error &error) {
        CHECK(error.code() == std::errc::resource_unavailable_try_again);
    }
}

void iostream() {
    std::ostringstream caught;
    std::streambuf *before = std::cout.rdbuf(caught.rdbuf());
    std::cout << "caller " << std::hex << 255 << " ";
    heddle::pushdown([] { std::cout << "function " << 255 << std::dec << " " << 1.5 << std::endl; });
    std::cout << "caller " << 255;
    std::cout.rdbuf(before);
    CHECK(caught.str() == "caller ff function ff 1.5\ncaller 255");

    std::string name = "/tmp/heddle-pushdown-" + std::to_string(getpid());
    std::ofstream written(name);
    written << "caller\n";
    heddle::pushdown([&] {
        written << "function " << 42 << "\n";
        written.close();
    });
    std::ifstream read = heddle::pushdown([&] {
        std::ifstream read(name);
        std::string line;
        CHECK(std::getline(read, line) && line == "caller");
        return read;
    });
    std::string word;
    int number = 0;
    CHECK(read >> word >> number && word == "function" && number == 42);
    std::remove(name.c_str());
    heddle::pushdown([] { std::cout << "directly "; });
    std::cout << "written ";
}

void strings() {
    std::string text = "short";
    std::vector<int> numbers{1, 2, 3};
    std::map<std::string, std::vector<int>> map{{"caller", {1}}};
    heddle::pushdown([&] {
        CHECK(text == "short" && numbers.size() == 3 && map.at("caller").size() == 1);
        text += std::string(1000, 'x');
        for (int i = 4; i <= 10000; i++) numbers.push_back(i);
        map["caller"].push_back(2);
        for (int i = 0; i < 1000; i++) map["function " + std::to_string(i)] = {i, i + 1};
    });
    CHECK(text.size() == 1005 && text.back() == 'x');
    CHECK(numbers.size() == 10000 && numbers[0] == 1 && numbers[9999] == 10000);
    CHECK(map.size() == 1001 && map["caller"].size() == 2 && map["function 999"][1] == 1000);
    for (int i = 0; i < 1000; i += 2) map.erase("function " + std::to_string(i));
    numbers.insert(numbers.begin(), 10000, 0);
    text.clear();
    text.shrink_to_fit();
    CHECK(heddle::pushdown([&] {
        std::sort(numbers.begin(), numbers.end(), std::greater<int>());
        text = "again";
        return map.size();
    }) == 501);
    CHECK(numbers.front() == 10000 && numbers.back() == 0 && text == "again");
}

void shared_pointers() {
    auto shared = std::make_shared<counted>();
    std::weak_ptr<counted> weak = shared;
    std::shared_ptr<counted> kept;
    heddle::pushdown([&, shared] {
        CHECK(shared.use_count() == 2);
        kept = shared;
    });
    CHECK(shared.use_count() == 2 && living == 1);
    // Both sides count at the same time.
    std::atomic<int> arrived{0};
    auto copies = [&] {
        arrived++;
        while (arrived < 2) std::this_thread::yield();
        for (int i = 0; i < 20000; i++) {
            std::shared_ptr<counted> copy = shared;
            CHECK(copy.use_count() >= 3);
        }
    };
    std::thread thread(copies);
    heddle::pushdown(copies);
    thread.join();
    CHECK(shared.use_count() == 2);
    shared.reset();
    heddle::pushdown([&] { kept.reset(); });
    CHECK(living == 0 && weak.expired());
    auto made = heddle::pushdown([] { return std::make_shared<counted>(); });
    CHECK(made.use_count() == 1 && living == 1);
}

int initialised;
std::map<int, int> global_map{{1, 2}};

std::vector<int> &once() {
    static std::vector<int> values = [] {
        initialised++;
        return std::vector<int>{1, 2, 3};
    }();
    return values;
}

std::atomic<int> starting{0};

// The initialisation takes a while, so that the other side waits for it.
int slow() {
    static int value = [] {
        initialised++;
        for (int i = 0; i < 100; i++) std::this_thread::yield();
        return 42;
    }();
    return value;
}

void static_init() {
    CHECK(heddle::pushdown([] { return &once(); }) == &once());
    CHECK(initialised == 1 && once().size() == 3);
    once().push_back(4);
    CHECK(heddle::pushdown([] { return once().size(); }) == 4);
    heddle::pushdown([] { global_map[3] = 4; });
    CHECK(global_map.size() == 2 && global_map[3] == 4);

    initialised = 0;
    auto starts = [] {
        starting++;
        while (starting < 2) std::this_thread::yield();
        CHECK(slow() == 42);
    };
    std::thread thread(starts);
    heddle::pushdown(starts);
    thread.join();
    CHECK(initialised == 1);
}

std::atomic<int> constructed{0}, destroyed{0};

struct of_thread {
    std::vector<int> values;
    std::thread::id owner;
    of_thread() : values(100, 1), owner(std::this_thread::get_id()) { constructed++; }
    ~of_thread() {
        CHECK(owner == std::this_thread::get_id());
        destroyed++;
    }
};

thread_local of_thread object;
thread_local int with_initialiser = [] { return 1000 + constructed; }();

void thread_local_objects() {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++) {
        threads.emplace_back([i] {
            // The first use is in the function, or here.
            if (i % 2 == 0) object.values.push_back(2);
            heddle::pushdown([i] {
                if (i % 2 != 0) object.values.push_back(2);
                object.values.push_back(3);
                CHECK(object.owner == std::this_thread::get_id() && with_initialiser >= 1000);
                with_initialiser = i;
            });
            CHECK(object.values.size() == 102 && object.values[101] == 3 && with_initialiser == i);
        });
    }
    for (std::thread &thread : threads) thread.join();
    CHECK(constructed == 4 && destroyed == 4);
}

// Exceptions and results come from wherever the callable has run; one that was killed throws.
void terms() {
    std::atomic<int> has_begun{0}, is_released{0};
    auto blocks = [&] {
        has_begun++;
        while (!is_released) std::this_thread::yield();
    };
    std::thread blocker([&] { heddle::pushdown(blocks); });
    while (!has_begun) std::this_thread::yield();
    heddle_pushdown_terms late{};
    late.timeout_ms = 20;
    CHECK(failure_of_call([&] { heddle::pushdown([] { return 1; }, late); }) == HEDDLE_PUSHDOWN_CANCELLED);
    late.flags = HEDDLE_PUSHDOWN_OR_HERE;
    CHECK(heddle::pushdown([] { return std::string("here"); }, late) == "here");
    try {
        heddle::pushdown([] { throw std::out_of_range("here"); }, late);
        CHECK(!"it throws");
    } catch (const std::out_of_range &error) {
        CHECK(std::string(error.what()) == "here");
    }
    is_released = 1;
    blocker.join();

    alignas(4096) static volatile int written;
    heddle_pushdown_terms limited{};
    limited.limit_ms = 30;
    CHECK(heddle::torn_ranges()->empty());
    CHECK(failure_of_call([&] {
        heddle::pushdown([] {
            for (;;) written = written + 1;
        }, limited);
    }) == HEDDLE_PUSHDOWN_KILLED);
    auto ranges = heddle::torn_ranges();
    CHECK(ranges && std::any_of(ranges->begin(), ranges->end(), [](const heddle_pushdown_range &range) {
        return reinterpret_cast<std::uintptr_t>(&written) - reinterpret_cast<std::uintptr_t>(range.start) < range.bytes;
    }));
    CHECK(heddle::pushdown([] { return 3; }, limited) == 3);
    struct heddle_pushdown_statistics statistics{};
    statistics.size = sizeof statistics;
    CHECK(heddle_pushdown_statistics(&statistics) == HEDDLE_PUSHDOWN_OK);
    CHECK(statistics.killed == 1 && statistics.cancelled == 3 && statistics.returned == 2);
}

const std::map<std::string, void (*)()> CASES{
    {"vtables", vtables},         {"closures", closures},
    {"exceptions", exceptions},   {"iostream", iostream},
    {"strings", strings},         {"shared_ptr", shared_pointers},
    {"static_init", static_init}, {"thread_local_objects", thread_local_objects},
    {"terms", terms},
};

} // namespace

int main(int count, char **arguments) {
    auto found = count == 2 ? CASES.find(arguments[1]) : CASES.end();
    if (found == CASES.end()) {
        std::cerr << "usage: features CASE\n";
        return 2;
    }
    // Before it is open, calls are refused.
    CHECK(failure_of([] {}).kind == HEDDLE_PUSHDOWN_REFUSED);
    if (heddle_pushdown_open(nullptr) != HEDDLE_PUSHDOWN_OK) {
        std::cerr << "not opened: " << heddle_pushdown_reason() << "\n";
        return 1;
    }
    found->second();
    std::cout << "ok" << std::endl;
}
